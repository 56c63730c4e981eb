"""`commsched import` of Chakra traces and of PyTorch's execution traces."""

import gzip
import importlib.util
import json
from math import prod

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.interchange import content
from commsched.interchange.aten import flops
from commsched.interchange.formats.execution_trace import Attribute, Node, Values, _traffic
from commsched.interchange.registry import Options, import_file
from commsched.machine import file as machine_file
from tests.support.jobs import ROOT

RECORDED = ROOT / "traces" / "imported" / "gpt-operators.json.gz"
COMPUTE, COLLECTIVE = 4, 7  # NodeType of et_def.proto


def imported(path):
    return import_file(content.read(path), Options(name="n"))


def test_a_recorded_gpt_has_the_shapes_and_work_of_its_layers(tmp_path):
    net = imported(RECORDED).net
    block = [(64,), (64,), (192,), (192, 64), (64,), (64, 64), (64,), (64,)]
    block += [(256,), (256, 64), (64,), (64, 256)]
    want = [(256, 64), (32, 64), *block, *block, (256,), (256, 64)]
    assert sorted(t.shape for t in net.tensors.values()) == sorted(want)
    last = net.layers[-1]
    assert last.name == "linear.8"
    assert (last.forward_flops, last.backward_flops) == (2**23, 2**24)  # 8 x 32 x 256 x 64
    assert last.forward_bytes >= 4 * (8 * 32 * 64 + 256 * 64 + 8 * 32 * 256)
    seconds = net.seconds(last, machine_file.load("p3.16xlarge").device)
    assert min(seconds) > 0.0


def test_an_operator_that_asks_for_memory_and_views_moves_its_inputs_and_outputs():
    layers = {layer.name: layer for layer in imported(RECORDED).net.layers}
    rows, row, width = 4 * 8 * 32 * 64, 4 * 8 * 32, 4 * 64  # B
    norm = layers["layer_norm.0"]
    assert norm.forward_bytes == 2 * rows + 2 * width + 2 * row  # mean and deviation of each row
    # An addition of two gradients comes first: three arrays.
    assert norm.backward_bytes == 3 * rows + (3 * rows + 2 * row + 2 * width) + 2 * width


def test_an_operator_that_returns_its_input_moves_nothing():
    def node(schema, name="aten::made", scope=0):
        facts = {"op_schema": schema, "scope": scope}.items()
        return Node(id=1, name=name, attrs=[Attribute(name=k, value=v) for k, v in facts])

    assert node("aten::add.Tensor(Tensor self, Tensor other) -> Tensor").moves
    assert node("aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)").moves
    assert not node("aten::chunk(Tensor(a -> *) self, int chunks) -> Tensor(a)[]").moves
    assert not node("aten::flatten(Tensor(a) self) -> Tensor(a)").moves
    assert not node("", name="aten::as_strided_").moves
    assert not node("", name="torch::autograd::AccumulateGrad", scope=1).moves


@pytest.mark.parametrize(("kind", "width"), [("bool", 1), ("long int", 8), ("c10::Half", 2)])
def test_what_an_operator_moves_has_the_bytes_of_its_type(kind, width):
    def values(*kinds):
        return Values(shapes=[[8, 4]] * len(kinds), types=[f"Tensor({one})" for one in kinds])

    inputs, outputs = values("float", kind), values("float")
    node = Node(id=1, name="aten::made", inputs=inputs, outputs=outputs)
    assert _traffic([node]) == {1: 8 * 4 * (4 + 4 + width)}


def test_a_gradient_that_is_undefined_is_no_tensor(tmp_path):
    data = json.loads(gzip.decompress(RECORDED.read_bytes()))
    last = [n for n in data["nodes"] if n["name"] == "torch::autograd::AccumulateGrad"][-1]
    last["inputs"] |= {"shapes": [[]], "types": ["Tensor(nullptr (uninitialized))"]}
    path = tmp_path / "et.json"
    path.write_text(json.dumps(data))
    assert len(imported(path).net.tensors) == len(imported(RECORDED).net.tensors) - 1


def test_products_of_attention_count_once():
    """The math path's are operators of their own."""
    shapes = [(2, 4, 8, 16)] * 3
    assert flops("aten::_scaled_dot_product_attention_math", shapes, (), ()) == 0.0
    fused = flops("aten::_scaled_dot_product_flash_attention", shapes, (), ())
    products = flops("aten::bmm", [(8, 8, 16), (8, 16, 8)], (), ())
    assert fused == products + flops("aten::bmm", [(8, 8, 8), (8, 8, 16)], (), ())


def test_a_recurrent_layer_has_the_products_of_its_steps():
    steps, batch, width, hidden = 12, 8, 16, 24
    inputs = [(steps, batch, width), (4 * hidden, width), (4 * hidden, hidden), (4 * hidden,)]
    of_input = flops("aten::mm", [(steps * batch, width), (width, 4 * hidden)])
    of_state = steps * flops("aten::mm", [(batch, hidden), (hidden, 4 * hidden)])
    assert flops("aten::mkldnn_rnn_layer", inputs) == of_input + of_state
    assert flops("aten::mkldnn_rnn_layer_backward", inputs) == 2 * (of_input + of_state)


@pytest.mark.parametrize("written", [lambda value: value, str])  # by either kind of trace
def test_a_transposed_convolution_meets_each_element_of_its_input(written):
    """Weights of (64, 32, 4, 4) with a stride of 2: the output has twice the height and width."""
    x, weights, made, each = (4, 64, 16, 16), (64, 32, 4, 4), (4, 32, 32, 32), [[2, 2], [1, 1]]

    def forward(*output, transposed):
        stated = map(written, ("", "", "", *each, [1, 1], transposed, [0, 0], 1))
        return flops("aten::convolution", [x, weights, (32,)], output, list(stated))

    def backward(transposed, *mask):
        stated = map(written, ("", "", "", [32], *each, [1, 1], transposed, [0, 0], 1, [*mask]))
        return flops("aten::convolution_backward", [made, x, weights], (), list(stated))

    once, plain = 2 * prod(x) * prod(weights[1:]), 2 * prod(made) * prod(weights[1:])
    assert forward(transposed=True) == forward(*made, transposed=True) == once
    assert forward(*made, transposed=False) == plain
    assert backward(True, True, True, True) == 2 * once
    assert backward(False, True, True, False) == 2 * plain
    assert backward(False, False, True, True) == plain  # its input needs no gradient
    assert flops("aten::convolution_backward", [made, x, weights]) == 2 * plain


def test_an_execution_trace_that_lacks_something_is_one_sentence(tmp_path):
    path = tmp_path / "et.json"
    data = json.loads(gzip.decompress(RECORDED.read_bytes()))
    data["nodes"] = [n for n in data["nodes"] if "AccumulateGrad" not in n["name"]]
    path.write_text(json.dumps(data))
    with pytest.raises(CommschedError, match="no step has a forward and a backward pass"):
        imported(path)
    path.write_text(json.dumps(data | {"schema": "1.0.1"}))
    with pytest.raises(CommschedError, match=r"schema '1\.0\.1' is older than 1\.0\.2-chakra"):
        imported(path)
    path.write_text('{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": "x"}]}')
    with pytest.raises(CommschedError, match="not a trace of ExecutionTraceObserver: expected"):
        imported(path)


chakra = pytest.mark.skipif(
    importlib.util.find_spec("google") is None, reason="pip install '.[chakra]'"
)


def write(path, *rows):
    """Write a trace: rows of name, kind, us, facts; each node follows the one before."""
    from commsched.interchange.chakra_messages import message

    packed = [b"\n\x050.0.4"]
    for number, (name, kind, spent, facts) in enumerate(rows, 1):
        before = [number - 1] if number > 1 else []
        node = message()(id=number, name=name, type=kind, data_deps=before, duration_micros=spent)
        for key, value in facts.items():
            field = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
            node.attr.add(name=key, **{field: value})
        packed.append(node.SerializeToString())
    path.write_bytes(b"".join(bytes([len(one)]) + one for one in packed))
    return path


HOST, GPU = {"is_cpu_op": True}, {"is_cpu_op": False}
STEP = (
    ("broadcast", COLLECTIVE, 9, GPU | {"comm_type": 5, "comm_size": 80}),
    ("aten::conv2d", COMPUTE, 1000, HOST),
    ("winograd", COMPUTE, 30, GPU),
    ("aten::convolution_backward", COMPUTE, 1000, HOST),
    ("wgrad", COMPUTE, 20, GPU),
    ("ncclKernel_AllReduce", COLLECTIVE, 7, GPU | {"comm_type": 0, "comm_size": 400}),
    ("dgrad_backward", COMPUTE, 40, GPU),
    ("ncclKernel_AllReduce", COLLECTIVE, 7, GPU | {"comm_type": 0, "comm_size": 800}),
    ("multi_tensor_apply", COMPUTE, 5, GPU),
)


@chakra
def test_a_chakra_trace_has_a_layer_for_each_all_reduce(tmp_path):
    found = imported(write(tmp_path / "chakra.et", *STEP))
    net = found.net
    spent = [(layer.name, layer.forward * 1e6, layer.backward * 1e6) for layer in net.layers]
    assert spent == [
        ("bucket.1", pytest.approx(20), pytest.approx(40)),
        ("bucket.0", pytest.approx(10), pytest.approx(20)),
    ]
    assert [t.numel for t in net.tensors.values()] == [200, 100]
    assert net.optimizer == pytest.approx(5e-6)
    assert found.notes[1] == "1 other collectives are not of gradients, and not in the net"


@chakra
def test_all_reduces_of_a_group_that_sums_activations_are_not_of_gradients(tmp_path):
    """With tensor parallelism; two groups that only sum later are refused."""
    groups = [GPU | {"comm_type": 0, "comm_size": 400, "pg_name": name} for name in "123"]
    of_layer, of_model, of_all = (("all_reduce", COLLECTIVE, 7, facts) for facts in groups)
    ahead, back = (f"{way}_kernel" for way in ("fwd", "bwd"))
    rows = [(ahead, COMPUTE, 10, GPU), of_layer, (back, COMPUTE, 20, GPU), of_layer]
    rows += [(ahead, COMPUTE, 10, GPU), (back, COMPUTE, 30, GPU), of_all]  # activations again
    found = imported(write(tmp_path / "chakra.et", *rows))
    assert [t.numel for t in found.net.tensors.values()] == [100]
    assert "process group '1' (400 B) are not of gradients" in found.notes[1]
    said = r"process groups '1' \(400 B\), '3' .*, '2' .* record a step of data-parallel training"
    with pytest.raises(CommschedError, match=said):
        imported(write(tmp_path / "chakra.et", *rows, of_model))


@chakra
def test_activations_that_are_computed_again_are_no_second_step(tmp_path):
    """Two segments: each is computed again before its backward pass."""
    total = GPU | {"comm_type": 0, "comm_size": 400}
    first, second = ((f"{way}_kernel", COMPUTE, 10, GPU) for way in ("fwd", "bwd"))
    back = [first, second, ("all_reduce", COLLECTIVE, 7, total)]
    assert len(imported(write(tmp_path / "chakra.et", first, first, *back, *back)).net.layers) == 2


@chakra
def test_a_chakra_trace_that_lacks_something_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "chakra.et"
    for rows, sentence in (
        (STEP[:3], "no node is named as part of a backward pass"),
        (STEP[:5], "no all-reduce with its 'comm_size' follows"),
        ([(n, k, 0, f) for n, k, _, f in STEP], "has a duration; link the trace with"),
    ):
        with pytest.raises(CommschedError, match=sentence):
            imported(write(path, *rows))
    whole = write(path, *STEP).read_bytes()
    for broken in (whole[:-3], whole[:30] + b"\xff" * 40):
        path.write_bytes(broken)
        assert main(["import", str(path), "-o", str(tmp_path / "net.json")]) == 2
        said = capsys.readouterr().err
        assert "not a Chakra execution trace" in said
        assert len(said.splitlines()) == 1
