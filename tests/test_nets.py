"""Networks: gradients against finite differences, and what a walk through the layers gives."""

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.kernels.rows import summed_rows
from commsched.train.forward_backward import cross_entropy, gradients, score
from commsched.train.layers.attention import Attention, LayerNorm
from commsched.train.layers.convolution import Convolution
from commsched.train.layers.dense import Gelu, Linear, Relu, Reshape, Tanh
from commsched.train.layers.embedding import Embedding, Positions, Tied
from commsched.train.layers.layer import LayerChain, Residual, product
from commsched.train.layers.mixture import Mixture
from commsched.train.registry import NETS
from tests.support import strict_arrays

STEP = 1e-6
CLOSE = 2e-6  # relative; of a central difference the square of the step and the rounding / step

LAYERS = {
    "linear": (Linear("l", 5, 4), (3, 2, 5)),
    "relu": (Relu("l"), (4, 6)),
    "tanh": (Tanh("l"), (4, 6)),
    "gelu": (Gelu("l"), (4, 6)),
    "shape": (Reshape("l", (2, 3)), (4, 6)),
    "convolution": (Convolution("l", 2, 3), (2, 5, 4, 2)),
    "convolution, stride 2": (Convolution("l", 2, 3, stride=2), (2, 6, 4, 2)),
    "convolution, odd image, stride 2": (Convolution("l", 1, 2, 5, stride=2), (2, 5, 7, 1)),
    "norm": (LayerNorm("l", 6), (3, 2, 6)),
    "attention": (Attention("l", 6, 2, 1.0), (2, 5, 6)),
    "mixture": (Mixture("l", 4, 6, 3, 2, 1.0), (2, 5, 4)),
    "mixture that drops nothing": (Mixture("l", 4, 6, 3, 1, 3.0), (2, 5, 4)),
    "positions": (Positions("l", 4, 3, 1.0), (2, 4, 3)),
    "chain": (LayerChain("l", [Linear("l.a", 5, 4), Tanh("l.b"), Linear("l.c", 4, 2)]), (3, 5)),
    "residual": (Residual("l", [LayerNorm("l.a", 4), Linear("l.b", 4, 4)]), (3, 4)),
}


def drawn(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def parameters_of(layer):
    """Values far from those of a start, which are special: gains of 1, biases of 0."""
    return {
        name: drawn(start.shape, seed)
        for seed, (name, start) in enumerate(layer.tensors.items(), 1)
    }


def differences(function, array):
    """The gradient of a function of an array by central differences."""
    found = np.empty_like(array)
    for at in np.ndindex(array.shape):
        before = array[at]
        array[at] = before + STEP
        more = function()
        array[at] = before - STEP
        found[at] = (more - function()) / (2 * STEP)
        array[at] = before
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_a_layers_gradients_are_those_of_finite_differences(name):
    layer, shape = LAYERS[name]
    inputs, parameters = drawn(shape), parameters_of(layer)
    outputs, kept = layer.forward(parameters, inputs)
    above = drawn(outputs.shape, 9)
    below, found = layer.backward(parameters, kept, above)

    def value():
        return float((layer.forward(parameters, inputs)[0] * above).sum())

    np.testing.assert_allclose(below, differences(value, inputs), rtol=CLOSE, atol=CLOSE)
    assert set(found) == set(parameters)
    for tensor, gradient in found.items():
        want = differences(value, parameters[tensor])
        np.testing.assert_allclose(gradient, want, rtol=CLOSE, atol=CLOSE, err_msg=tensor)


def test_an_embeddings_gradient_is_zero_but_for_the_rows_that_were_read():
    layer, words = Embedding("l", 7, 3, 1.0), np.array([[2, 5, 2], [0, 2, 5]])
    parameters = parameters_of(layer)
    outputs, kept = layer.forward(parameters, words)
    above = drawn(outputs.shape, 9)
    below, found = layer.backward(parameters, kept, above)

    def value():
        return float((layer.forward(parameters, words)[0] * above).sum())

    want = differences(value, parameters["l.weight"])
    np.testing.assert_allclose(found["l.weight"], want, rtol=CLOSE, atol=CLOSE)
    assert below is None
    assert np.flatnonzero(found["l.weight"].any(axis=1)).tolist() == [0, 2, 5]


def test_rows_are_summed_in_order_to_the_bit():
    random = np.random.default_rng(3)
    index = random.integers(0, 20, 300)
    values = random.standard_normal((300, 4)).astype(np.float32)
    want = np.zeros((25, 4), np.float32)
    np.add.at(want, index, values)
    np.testing.assert_array_equal(summed_rows(25, index, values), want)
    np.testing.assert_array_equal(summed_rows(2, index[:0], values[:0]), np.zeros((2, 4)))


def test_a_tied_heads_table_gets_the_gradients_of_both_uses():
    layer = Tied("l", "table")
    parameters, inputs = {"table": drawn((5, 3), 1)}, drawn((2, 4, 3))
    outputs, kept = layer.forward(parameters, inputs)
    above = drawn(outputs.shape, 9)
    below, found = layer.backward(parameters, kept, above)

    def value():
        return float((layer.forward(parameters, inputs)[0] * above).sum())

    np.testing.assert_allclose(below, differences(value, inputs), rtol=CLOSE, atol=CLOSE)
    want = differences(value, parameters["table"])
    np.testing.assert_allclose(found["table"], want, rtol=CLOSE, atol=CLOSE)


SMALL = {
    "mlp:4:2": ((3, 64), 10, 0.0),
    "cnn:2": ((2, 64), 10, 0.0),
    "autoencoder:4:3": ((2, 64), 16, 0.0),
    "words:3:11": ((4, 3), 11, 11),
    "bigrams:3:11": ((4,), 11, 11),
    "gpt:8:1:2": ((2, 64), 256, 256),
    "gpt:8:1:2:tied": ((2, 64), 256, 256),
    "moe:8:4:2:2": ((2, 64), 256, 256),
}


def small(name):
    """A net, its parameters in float64, and a batch."""
    net, (shape, classes, numbers) = NETS[name], SMALL[name]
    parameters = {n: v.astype(np.float64) for n, v in net.start(0).items()}
    inputs = np.random.default_rng(1).integers(0, numbers, shape) if numbers else drawn(shape)
    outputs = shape if name.startswith(("gpt", "moe", "autoencoder")) else shape[:1]
    return net, parameters, inputs, np.random.default_rng(2).integers(0, classes, outputs)


@pytest.mark.parametrize("name", SMALL)
def test_a_nets_gradients_are_those_of_finite_differences(name):
    net, parameters, inputs, targets = small(name)
    found = {}
    for _, some in gradients(net, parameters, inputs, targets)[1]:
        assert not found.keys() & some.keys()
        found |= some
    assert set(found) == set(net.tensors)

    def loss():
        return score(net, parameters, inputs, targets).loss / targets.size

    for tensor, gradient in found.items():
        along = drawn(gradient.shape, 5)
        values = parameters[tensor].copy()
        ends = []
        for sign in (1, -1):
            parameters[tensor] = values + sign * STEP * along
            ends.append(loss())
        parameters[tensor] = values
        slope = (ends[0] - ends[1]) / (2 * STEP)
        assert float((gradient * along).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7), tensor


@pytest.mark.parametrize("name", SMALL)
def test_a_net_computes_where_its_arrays_lie(name):
    net, parameters, inputs, targets = small(name)
    away = {tensor: strict_arrays.asarray(values) for tensor, values in parameters.items()}
    found = gradients(net, away, strict_arrays.asarray(inputs), strict_arrays.asarray(targets))
    want = gradients(net, parameters, inputs, targets)
    assert found[0] == want[0]
    for (_, there), (_, here) in zip(found[1], want[1], strict=True):
        for tensor, gradient in there.items():
            assert isinstance(gradient, strict_arrays.ndarray)
            np.testing.assert_array_equal(gradient.held, here[tensor], err_msg=tensor)


@pytest.mark.parametrize("name", SMALL)
def test_layers_give_their_gradients_the_last_one_first(name):
    net, parameters, inputs, targets = small(name)
    order = [layer for layer, _ in gradients(net, parameters, inputs, targets)[1]]
    assert order == [layer.name for layer in net][::-1]
    owned = {layer.name: set(layer.tensors) for layer in net}
    for layer, found in gradients(net, parameters, inputs, targets)[1]:
        assert set(found) == owned[layer]


def test_the_score_is_that_of_a_softmax():
    scores, right = drawn((6, 4)), np.array([0, 3, 1, 1, 2, 0])
    found, gradient = cross_entropy(scores.copy(), right)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert found.loss == pytest.approx(-np.log(chances[np.arange(6), right]).sum())
    assert found.correct == int((scores.argmax(axis=1) == right).sum())
    np.testing.assert_allclose(gradient, chances - np.eye(4)[right], atol=1e-12)


def test_attention_does_not_look_ahead():
    layer, inputs = Attention("l", 6, 2, 1.0), drawn((1, 5, 6))
    parameters = parameters_of(layer)
    before = layer.forward(parameters, inputs)[0]
    inputs[0, 3:] += 1.0
    after = layer.forward(parameters, inputs)[0]
    np.testing.assert_array_equal(after[0, :3], before[0, :3])
    assert np.all(after[0, 3:] != before[0, 3:])


@pytest.mark.parametrize("name", [*SMALL, "words", "gpt", "mlp", "cnn"])
def test_the_start_depends_on_the_seed_alone(name):
    net = NETS[name]
    first, same, other = net.start(3), net.start(3), net.start(4)
    for tensor, start in net.tensors.items():
        assert first[tensor].dtype == np.float32
        assert first[tensor].shape == start.shape
        np.testing.assert_array_equal(first[tensor], same[tensor])
    assert any((first[tensor] != other[tensor]).any() for tensor in first)


def test_products_of_16_bit_numbers_are_summed_in_float32():
    a, b = drawn((3, 500)).astype(np.float16), drawn((500, 2), 1).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Half a unit of the 11 bits, and what float32 sums lose.
    np.testing.assert_allclose(product(a, b), exact, rtol=2.0**-11 + 1e-5, atol=1e-4)
    assert product(a, b).dtype == np.float16


@pytest.mark.parametrize("name", ["mlp:4:2", "cnn:2", "words:3:11", "gpt:8:1:2:tied"])
def test_in_16_bits_gradients_stay_near_those_of_32(name):
    net, parameters, inputs, targets = small(name)
    exact = [g for _, g in gradients(net, parameters, inputs, targets)[1]]
    halves = {tensor: values.astype(np.float16) for tensor, values in parameters.items()}
    given = inputs if inputs.dtype.kind == "i" else inputs.astype(np.float16)
    for want, (_, found) in zip(exact, gradients(net, halves, given, targets)[1], strict=True):
        for tensor, gradient in found.items():
            assert gradient.dtype == np.float16
            size = np.linalg.norm(want[tensor])
            # 11 bits, some ten roundings one after the other, and subnormal numbers.
            assert np.linalg.norm(gradient - want[tensor]) < 0.02 * size + 1e-5, tensor


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlp:0", "the width must be a whole number from 1 to 4096, got '0'"),
        (
            "words:1:1",
            "net to train 'words:1:1': the vocabulary must be a whole number from 2 to 1000000",
        ),
        ("mlp:4:2:1", "at most 2 parameters, got 3"),
        ("gpt:8:1:3", "the width must be a multiple of the heads, got 8 and 3"),
        (
            "gpt:8:1:2:free",
            "what follows the sizes must be one of tied, sources, tied:sources; got 'free'",
        ),
        (
            "lstm",
            "no net to train named 'lstm'; known: autoencoder:128:16, bigrams:64:2000, cnn:16,"
            + " gpt:64:2:4, mlp:64:2, moe:32:4:2:1",
        ),
    ],
)
def test_a_wrong_name_is_refused(name, message):
    with pytest.raises(CommschedError) as error:
        NETS[name]
    assert message in str(error.value)
