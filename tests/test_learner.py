"""The worker that trains: ranks in one process, other array modules, updates, loss scales."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.kernels.modules import on_host
from commsched.net import file as net_file
from commsched.plan.model import Plan
from commsched.planner.fixed_method import given as planned
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.train.assignment import Assignment, Settings
from commsched.train.forward_backward import ForwardBackward
from commsched.train.optimizers import GROWTH, OPTIMIZERS, LossScale
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of
from commsched.train.workers.learner import Learner
from tests.support import strict_arrays
from tests.support.small_plans import machine

SETTINGS = Settings(optimizer="adam", rate=0.01, batch=12)


def plan_of(net: str, ranks: int, **changes: object) -> Plan:
    """Small buckets, so that some hold several tensors and some layers have several."""
    graph = profile_net(NETS[net], 4)
    request = Request(net=graph, machine=machine(1, ranks), bucket=3000.0)
    return replace(planned(request, "ring+dense"), **changes)  # type: ignore[arg-type]


def learners(net: str, plan: Plan, settings: Settings, module=np) -> list[Learner]:
    data = DATA[NETS[net].data](0)
    ranks = range(plan.machine.size)
    return [Learner(Assignment(NETS[net], data, plan, settings, rank, module)) for rank in ranks]


def go(plan: Plan, ranks: list[Learner], steps: range) -> list[float]:
    """Train in lockstep, summing in rank order; the losses."""
    found, flags = [], {}
    scores: dict[int, list[float]] = {}
    for each in ranks:
        each.report = lambda step, score, overflow: (
            scores.setdefault(step, []).append(score.loss / score.guesses),
            flags.__setitem__(step, flags.get(step, False) or overflow),
        )
        each.overflowed = flags.__getitem__
    for step in steps:
        program = STRATEGIES[plan.strategy].lower(plan, step, {})
        for op in program.role_of(0).ops:
            if op.kind in (Kind.COMPUTE, Kind.APPLY):
                for each in ranks:
                    each.perform(step, op)
            elif op.kind is Kind.DECODE:
                _sum(plan, ranks, step, op.launch)
        found.append(float(np.mean(scores[step])))
    for each in ranks:
        each.settle()
    return found


def _sum(plan: Plan, ranks: list[Learner], step: int, launch: int) -> None:
    numel = sum(stop - start for _, start, stop in plan.launches[launch].pieces)
    total = np.zeros(numel, np.float32)
    for each in ranks:
        out = each.asarray(np.empty(numel, np.float32))
        each.gradient(step, launch, out)
        total += on_host(out)
    if plan.mean:
        total /= np.float32(len(ranks))
    for each in ranks:
        each.result(step, launch, each.asarray(total))


@pytest.mark.parametrize("net", ["mlp:8:2", "cnn:2", "words:4:50", "gpt:8:1:2:tied"])
def test_every_net_learns_the_same_on_any_number_of_ranks(net):
    losses = {}
    for ranks in (1, 3):
        plan = plan_of(net, ranks)
        losses[ranks] = go(plan, learners(net, plan, SETTINGS), range(6))
    # float32 rounding, which Adam's quotient enlarges where gradients are nearly zero.
    assert losses[3] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < losses[1][0]


def test_a_sum_and_a_mean_give_the_same_updates():
    """With two ranks halving is exact; a sum is weighed before it is sent."""
    found = []
    for mean in (True, False):
        plan = plan_of("mlp:8:2", 2, mean=mean)
        ranks = learners("mlp:8:2", plan, SETTINGS)
        go(plan, ranks, range(4))
        found.append(ranks[0].values)
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])


def test_all_ranks_hold_equal_bits_after_every_step():
    plan = plan_of("words:4:50", 3)
    ranks = learners("words:4:50", plan, SETTINGS)
    for step in range(4):
        go(plan, ranks, range(step, step + 1))
        for name, values in ranks[0].values.items():
            for other in ranks[1:]:
                np.testing.assert_array_equal(other.values[name], values)


@pytest.mark.parametrize("half", [False, True])
def test_it_trains_where_its_arrays_lie(half):
    settings = replace(SETTINGS, half=half)
    plan = plan_of("gpt:8:1:2:tied", 1)
    here, there = (
        learners("gpt:8:1:2:tied", plan, settings, module) for module in (np, strict_arrays)
    )
    losses = go(plan, here, range(3)), go(plan, there, range(3))
    # In 16 bits other modules round products themselves; here their sums are float32.
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if half else 0)
    for name, values in here[0].values.items():
        assert isinstance(there[0].values[name], strict_arrays.ndarray)
        if not half:
            np.testing.assert_array_equal(there[0].values[name].held, values)


READS = ("__bool__", "__int__", "__float__", "__index__", "get", "tolist")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("net", ["mlp:8:2", "cnn:2"])
def test_a_step_waits_for_its_device_at_its_end_only(net, half, monkeypatch):
    plan = plan_of(net, 1)
    ranks = learners(net, plan, replace(SETTINGS, half=half), strict_arrays)
    reads, doing = [], []
    for word in READS:
        read = getattr(strict_arrays.ndarray, word)
        noted = lambda array, read=read: reads.append(doing[-1]) or read(array)  # noqa: E731
        monkeypatch.setattr(strict_arrays.ndarray, word, noted)
    perform = Learner.perform
    noted = lambda each, step, op: doing.append(op.name) or perform(each, step, op)  # noqa: E731
    monkeypatch.setattr(Learner, "perform", noted)
    go(plan, ranks, range(2))
    assert set(reads) == {f"backward/{next(iter(ranks[0].net)).name}"}


@pytest.mark.parametrize("module", [np, strict_arrays])
def test_gradients_that_overflow_leave_a_step_out_wherever_they_lie(module):
    plan = plan_of("mlp:8:2", 1)
    (rank,) = learners("mlp:8:2", plan, replace(SETTINGS, half=True), module)
    rank.scale.value = 2.0**24
    before = {name: on_host(values).copy() for name, values in rank.values.items()}
    go(plan, [rank], range(1))
    for name, values in before.items():
        np.testing.assert_array_equal(on_host(rank.values[name]), values)
    assert (rank.skipped, rank.scale.value) == (1, 2.0**23)


def test_a_step_that_overflows_is_left_out_on_all_ranks():
    settings = replace(SETTINGS, half=True)
    plan = plan_of("mlp:8:2", 2)
    ranks = learners("mlp:8:2", plan, settings)
    for each in ranks:
        each.scale.value = 2.0**24  # 16-bit gradients end at 65504
    before = {name: values.copy() for name, values in ranks[0].values.items()}
    go(plan, ranks, range(1))
    for name, values in before.items():
        np.testing.assert_array_equal(ranks[1].values[name], values)
    assert [(each.skipped, each.scale.value) for each in ranks] == [(1, 2.0**23)] * 2
    losses = go(plan, ranks, range(1, 40))
    assert 1 < ranks[0].skipped < 20
    assert losses[-1] < losses[0]


def test_the_first_update_after_steps_that_overflow_is_the_optimizers_first():
    plan = plan_of("mlp:8:2", 1)
    (rank,) = learners("mlp:8:2", plan, replace(SETTINGS, half=True))
    rank.scale.value = 2.0**24
    before, step = {name: values.copy() for name, values in rank.values.items()}, 0
    while rank.skipped == step:
        go(plan, [rank], range(step, step + 1))
        step += 1
    assert step > 1
    farthest = max(np.abs(values - before[name]).max() for name, values in rank.values.items())
    np.testing.assert_allclose(farthest, SETTINGS.rate, rtol=1e-3)  # whatever the gradient


def test_a_16_bit_copy_is_that_of_the_parameters():
    plan = plan_of("mlp:8:2", 1)
    (rank,) = learners("mlp:8:2", plan, replace(SETTINGS, half=True))
    rank.scale.value = 64.0
    go(plan, [rank], range(3))
    assert rank.skipped == 0
    for name, values in rank.values.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(rank.used[name], values.astype(np.float16))


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_good_steps():
    scale = LossScale(8.0)
    for _ in range(GROWTH - 1):
        scale.after(False)
    assert (scale.value, scale.good) == (8.0, GROWTH - 1)
    scale.after(False)
    assert (scale.value, scale.good) == (16.0, 0)
    scale.after(False)
    scale.after(True)
    assert (scale.value, scale.good) == (8.0, 0)


def textbook(name, values, gradients, rate):
    """The updates in float64, as their papers write them."""
    first, second = np.zeros_like(values), np.zeros_like(values)
    for t, g in enumerate(gradients, 1):
        if name == "sgd":
            values = values - rate * g
        elif name == "momentum":
            first = 0.9 * first + g
            values = values - rate * first
        else:
            first = 0.9 * first + 0.1 * g
            second = 0.999 * second + 0.001 * g * g
            up, down = first / (1 - 0.9**t), np.sqrt(second / (1 - 0.999**t)) + 1e-8
            values = values - rate * up / down
    return values


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(seed=st.integers(0, 99), steps=st.integers(1, 8), cut=st.integers(0, 30))
def test_updates_are_those_of_the_textbook_in_any_pieces(name, seed, steps, cut):
    random = np.random.default_rng(seed)
    start = random.standard_normal(30).astype(np.float32)
    gradients = random.standard_normal((steps, 30)).astype(np.float32)
    optimizer, found = OPTIMIZERS[name], []
    for pieces in ([slice(0, 30)], [slice(0, cut), slice(cut, 30)]):
        values = start.copy()
        kept = {word: np.zeros(30, np.float32) for word in optimizer.words}
        for count, gradient in enumerate(gradients):
            for piece in pieces:
                own = {word: array[piece] for word, array in kept.items()}
                optimizer.update(values[piece], gradient[piece], own, count, 0.01)
        found.append(values)
    np.testing.assert_array_equal(*found)
    want = textbook(name, start.astype(np.float64), gradients.astype(np.float64), 0.01)
    np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-6)  # float32, 8 steps


@pytest.mark.parametrize("net", NETS)
def test_a_profile_is_a_graph_of_the_net_that_a_file_holds(net, tmp_path):
    graph = profile_net(NETS[net], 4)
    assert [layer.name for layer in graph.layers] == [layer.name for layer in NETS[net]]
    assert {n: t.shape for n, t in graph.tensors.items()} == {
        n: start.shape for n, start in NETS[net].tensors.items()
    }
    for layer in graph.layers:
        assert layer.forward > 0
        assert layer.backward > 0
        assert layer.activation > 0
    net_file.write(tmp_path / "net.json", graph)
    assert net_file.read(tmp_path / "net.json").batch == 4


@pytest.mark.parametrize("half", [False, True])
def test_a_profile_of_another_module_differs_in_its_seconds_alone(half):
    looks = []
    here = profile_net(NETS["words:4:50"], 4, half=half)
    there = profile_net(
        NETS["words:4:50"], 4, half=half, module=strict_arrays, settled=lambda: looks.append(1)
    )
    assert len(looks) == 17 * (2 + 2 * len(here.layers))  # around each layer of each batch

    def timeless(graph):
        return [replace(layer, forward=0.0, backward=0.0) for layer in graph.layers]

    assert timeless(there) == timeless(here)


def test_a_profile_knows_how_sparse_an_embeddings_gradient_is():
    """The rows that are hit by 1 to 32 batches of 16 samples; the profile has seen 16 batches."""
    law = profile_net(NETS["words"], 16).tensors["embedding.weight"].sparsity
    assert (law.law, law.rows) == ("zipf", 2000)
    assert 0.01 < law.density < 16 * 3 / 2000
    data = DATA["words:2000:3"](0).train
    order = np.random.default_rng(0).permutation(len(data))
    for ranks in (1, 2, 4, 8, 16, 32):
        hit = [
            len(np.unique(data.inputs[order[at : at + 16 * ranks]])) / 2000
            for at in range(0, 16 * 512, 16 * ranks)
        ]
        assert float(law.after(ranks)) == pytest.approx(np.mean(hit), rel=0.1), ranks
    dense = profile_net(NETS["gpt:8:1:2:tied"], 4).tensors["embedding.bytes.weight"]
    assert dense.sparsity.law == "dense"


def test_a_profile_knows_how_many_zeros_silent_units_leave():
    """The densities of unions of batches, counted by another way through the same batches."""
    net, batch = NETS["mlp"], 16
    parameters, train = net.start(0), DATA[net.data](0).train
    order = [batch_of(0, step, batch, len(train)) for step in range(16)]

    def nonzero(chosen):
        some = train.of(chosen)
        walk = ForwardBackward(net, dict(parameters), some.inputs)
        for i in range(len(net.layers)):
            walk.forward(i)
        walk.score(some.targets, 1.0 / some.targets.size)
        back = [walk.backward(i) for i in reversed(range(len(net.layers)))]
        return {name: values != 0 for found in back for name, values in found.items()}

    seen = [nonzero(chosen) for chosen in order]
    tensors = profile_net(net, batch).tensors
    for name, tensor in tensors.items():
        law, each = tensor.sparsity, np.array([one[name] for one in seen])
        expected = [each.reshape(16 // k, k, -1).any(axis=1).mean() for k in (1, 2, 4, 8)]
        if expected[0] < 31 / 32:
            assert law.law == "curve"
            np.testing.assert_allclose(law.after(np.array([1, 2, 4, 8])), expected, rtol=1e-6)
        else:
            assert law.law == "dense"
    assert {tensor.sparsity.law for tensor in tensors.values()} == {"curve", "dense"}
