"""What a plan means under `sync`: the operations of a step and what they wait for."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, phases_of
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.program.model import STREAMS, Kind, Op, is_exchange_stream
from commsched.program.registry import STRATEGIES
from tests.support import sample_methods
from tests.support.small_plans import graph, machine, plan
from tests.test_plan import plans

SYNC = STRATEGIES["sync"]
PAIRS = ("ring+dense", "tree+fp16", "all-gather+coo")
OVERLAPS = ("forward", "backward")


@pytest.fixture
def phased(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Names of methods of several phases, registered for one test."""
    known = dict(METHODS.items()) | {method.name: method for method in sample_methods.LOSSLESS}
    monkeypatch.setattr(METHODS, "_items", known)
    phases_of.cache_clear()
    return tuple(method.name for method in sample_methods.LOSSLESS)


def lowered(made: Plan, step: int) -> tuple[Op, ...]:
    program = SYNC.lower(made, step, {})
    assert program.step == step
    (role,) = program.roles
    assert role.ranks == tuple(range(made.machine.size))
    return role.ops


def assert_sound(made: Plan) -> None:
    """Names are unique, streams exist, and three steps can be done in the order of each stream."""
    steps = [lowered(made, step) for step in range(3)]
    for ops in steps:
        assert len({op.name for op in ops}) == len(ops)
        assert {op.stream for op in ops} <= set(STREAMS)
    queues = {
        stream: [(step, op) for step, ops in enumerate(steps) for op in ops if op.stream == stream]
        for stream in STREAMS
    }
    done: set[tuple[int, str]] = set()
    moved = True
    while moved:
        moved = False
        for queue in queues.values():
            while queue and all(
                back > queue[0][0] or (queue[0][0] - back, name) in done
                for name, back in queue[0][1].after
            ):
                step, op = queue.pop(0)
                done.add((step, op.name))
                moved = True
    assert not any(queues.values()), {stream: q[0] for stream, q in queues.items() if q}


# --- Laws. ---


@given(made=plans(), overlap=st.sampled_from(OVERLAPS))
def test_every_step_can_be_done_in_the_order_of_its_streams(made, overlap):
    assert_sound(replace(made, params={"overlap": overlap}))


@given(made=plans(), overlap=st.sampled_from(OVERLAPS), step=st.integers(0, 2))
def test_every_launch_is_encoded_exchanged_and_decoded_once(made, overlap, step):
    ops = lowered(replace(made, params={"overlap": overlap}), step)
    for index, launch in enumerate(made.launches):
        mine = {op.kind: op for op in ops if op.launch == index and op.kind is not Kind.APPLY}
        assert set(mine) == {Kind.ENCODE, Kind.EXCHANGE, Kind.DECODE}
        assert len([op for op in ops if op.launch == index and op.kind is not Kind.APPLY]) == 3
        assert mine[Kind.EXCHANGE].stream == launch.stream
        assert [a.name for a in mine[Kind.ENCODE].after] == [f"backward/{launch.after}"]
        assert [a.name for a in mine[Kind.EXCHANGE].after] == [mine[Kind.ENCODE].name]
        assert [a.name for a in mine[Kind.DECODE].after] == [mine[Kind.EXCHANGE].name]


@given(made=plans(), step=st.integers(0, 2))
def test_with_late_applying_a_forward_follows_the_apply_of_all_it_reads(made, step):
    """A parameter is updated from the step before, just before the first layer that reads it."""
    made = replace(made, params={"overlap": "forward"})
    compute = [op for op in lowered(made, step) if op.stream == "compute"]
    order = {op.name: i for i, op in enumerate(compute)}
    applies = [op for op in compute if op.kind is Kind.APPLY]
    assert len(applies) == (len(made.launches) if step else 0)
    home = {t.name: layer.name for layer in made.net.layers for t in layer.tensors}
    for op in applies:
        launch = made.launches[op.launch]
        assert op.after == ((f"{launch.name}/decode", 1),)
        readers = [order[f"forward/{home[piece.tensor]}"] for piece in launch.pieces]
        assert order[op.name] < min(readers)
        between = compute[order[op.name] + 1 : min(readers)]
        assert all(other.kind is Kind.APPLY for other in between)


@given(made=plans(), step=st.integers(0, 2))
def test_with_early_applying_all_is_applied_at_the_end_of_the_step(made, step):
    made = replace(made, params={"overlap": "backward"})
    compute = [op for op in lowered(made, step) if op.stream == "compute"]
    applies = compute[-len(made.launches) :]
    assert {op.launch for op in applies} == set(range(len(made.launches)))
    assert len([op for op in compute if op.kind is Kind.APPLY]) == len(made.launches)
    for op in applies:
        assert op.after == ((f"{made.launches[op.launch].name}/decode", 0),)


@given(made=plans(), overlap=st.sampled_from(OVERLAPS), step=st.integers(0, 2))
def test_layers_run_forward_and_then_backward(made, overlap, step):
    ops = lowered(replace(made, params={"overlap": overlap}), step)
    names = [op.name for op in ops if op.kind is Kind.COMPUTE]
    layers = [layer.name for layer in made.net.layers]
    backwards = [f"backward/{name}" for name in reversed(layers)]
    assert names == [f"forward/{name}" for name in layers] + backwards


@given(made=plans())
def test_exchanges_keep_the_order_of_their_priorities_on_every_stream(made):
    ops = lowered(made, 0)
    for stream in STREAMS[1:]:
        on_it = [op.launch for op in ops if op.stream == stream and op.launch >= 0]
        priorities = [made.launches[i].priority for i in on_it]
        assert priorities == sorted(priorities)


# --- Methods of several phases. ---


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_phases_follow_each_other_and_a_choice_is_decided_first(phased, overlap):
    made = plan(graph([40] * 6), machine(1, 3), [*phased, "ring+dense"])
    made = replace(made, params={"overlap": overlap})
    assert_sound(made)
    for index, launch in enumerate(made.launches):
        chain = [op for op in lowered(made, 0) if op.launch == index and op.kind is not Kind.APPLY]
        assert chain[0].after == ((f"backward/{launch.after}", 0),)
        for before, op in itertools.pairwise(chain):
            assert op.after == ((before.name, 0),)
        kinds = [op.kind for op in chain]
        assert kinds.count(Kind.EXCHANGE) == len(phases_of(made, index))
        assert kinds.count(Kind.DECIDE) == (launch.method in ("switching", "early-choice"))
        for i, op in enumerate(chain):
            if op.kind is Kind.DECIDE:
                assert is_exchange_stream(op.stream)
                assert chain[i + 1].kind is Kind.ENCODE
                assert chain[i + 1].phase == op.phase


def test_a_golden_step_of_two_layers():
    made = plan(graph([10, 20]), machine(1, 2), ["ring+dense"])
    assert [f"{op.stream}: {op.name} < {_names(op)}" for op in lowered(made, 1)] == [
        "compute: b1/apply < b1/decode-1",
        "compute: forward/l0 < ",
        "compute: b0/apply < b0/decode-1",
        "compute: forward/l1 < ",
        "compute: backward/l1 < ",
        "compute: backward/l0 < ",
        "encode: b0/encode < backward/l1",
        "inside: b0/exchange < b0/encode",
        "decode: b0/decode < b0/exchange",
        "encode: b1/encode < backward/l0",
        "inside: b1/exchange < b1/encode",
        "decode: b1/decode < b1/exchange",
    ]


def _names(op: Op) -> str:
    return ", ".join(name + (f"-{back}" if back else "") for name, back in op.after)


# --- Seconds and bytes. ---


def test_seconds_are_those_of_the_net_and_of_the_optimiser():
    made = plan(graph([10, 20], seconds=3e-3), machine(1, 2), ["ring+dense"])
    seconds = {op.name: op.seconds for op in lowered(made, 1)}
    assert seconds["forward/l0"] == pytest.approx(3e-3)
    assert seconds["backward/l1"] == pytest.approx(6e-3)
    # momentum: read gradient, parameter and momentum, write the last two: 20 B each; 100 GB/s
    assert seconds["b0/apply"] == pytest.approx(20 * 20 / 1e11)
    assert seconds["b0/exchange"] == 0.0


@pytest.mark.parametrize(("optimizer", "words"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_memory_is_counted_per_parameter(optimizer, words):
    made = replace(plan(graph([10, 20]), machine(1, 2), ["ring+dense"]), params={})
    memory = SYNC.memory(replace(made, params={"optimizer": optimizer}))
    assert memory.parameters == memory.gradients == memory.buckets == 4 * 30
    assert memory.optimizer == 4 * words * 30
    assert memory.activations == 200
    assert memory.residuals == 0
    assert memory.packets == 4 * 20 / 2  # of the larger bucket a ring of two receives one half
    assert memory.total == 3 * 120 + words * 120 + 200 + 40


# --- Refusals. ---


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"overlp": "forward"}, "strategy 'sync' has no parameter 'overlp'; known: overlap, opt"),
        ({"overlap": "never"}, "overlap cannot be 'never'; allowed: backward, forward"),
        ({"optimizer": 3}, "optimizer cannot be 3; allowed: sgd, momentum, adam"),
    ],
)
def test_an_impossible_parameter_is_refused(params, message):
    made = replace(plan(graph([10]), machine(1, 2), ["ring+dense"]), params=params)
    with pytest.raises(CommschedError, match=message):
        SYNC.lower(made, 0, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": (0, 1)}, "launch 'b0' exchanges among 2 of 3 ranks; strategy 'sync' exchanges"),
        ({"payload": "parameter"}, "launch 'b0' exchanges parameters; strategy 'sync'"),
        ({"every": 4}, "exchanges every 4 steps, merged 0 steps later"),
        ({"lag": 2}, "exchanges every 1 steps, merged 2 steps later"),
    ],
)
def test_a_launch_that_means_something_else_is_refused(change, message):
    made = plan(graph([10]), machine(1, 3), ["ring+dense"])
    broken = replace(made, launches=(replace(made.launches[0], **change),))
    with pytest.raises(CommschedError, match=message):
        SYNC.lower(broken, 0, {})


def test_a_group_of_all_ranks_may_be_spelt_out():
    made = plan(graph([10]), machine(1, 3), ["ring+dense"])
    spelt = replace(made, launches=(replace(made.launches[0], group=(2, 0, 1)),))
    assert lowered(spelt, 0) == lowered(made, 0)


def test_a_tensor_cut_over_launches_is_applied_before_its_layer_runs():
    net = Net(
        name="one",
        layers=(Layer(name="l", tensors=(Tensor(name="t", shape=(10,)),), forward=0, backward=0),),
    )
    rows = tuple(
        Launch(
            name=f"b{i}",
            pieces=(Piece("t", start, start + 5),),
            after="l",
            method=PAIRS[i],
            stream="inside",
            priority=-i,
        )
        for i, start in enumerate((5, 0))
    )
    made = Plan(net=net, machine=machine(1, 2), launches=rows)
    made.check()
    ops = [op.name for op in lowered(made, 1)]
    assert ops[:3] == ["b0/apply", "b1/apply", "forward/l"]
    assert ops[4:] == [f"b{i}/{kind}" for i in (1, 0) for kind in ("encode", "exchange", "decode")]
    assert np.sum([made.spec(row).numel for row in rows]) == net.numel
