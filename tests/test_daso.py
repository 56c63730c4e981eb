"""DASO: when it exchanges, what it merges, what its controller does, and what time it costs."""

from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.schedule.chain import chain
from commsched.schedule.check import check
from commsched.simulate.engine import simulate
from commsched.strategies.daso.epochs import epoch_of
from commsched.strategies.daso.plateau import Plateau
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from tests.support.small_plans import daso_plan as made
from tests.support.small_plans import graph, machine, strategy_plan

DASO = STRATEGIES["daso"]


# --- When: the phases of a training. ---


def phases(decisions=None, lanes=2, steps=24, **params):
    """One word per step: what starts and what is merged, with the place whose turn it is."""
    settings = {**DASO.defaults, **params}
    words = []
    for step in range(steps):
        now = epoch_of(step, settings, lanes, decisions or {}).at(step)
        starts, merges, decides, averages = now
        word = f"{starts.purpose[0]}{starts.lane}" if starts else "."
        word += f"<{merges.lane}@{step - merges.start}" if merges else ""
        words.append(word + "!" * decides + "-" * (not averages))
    return " ".join(words)


def test_a_golden_training_of_three_epochs():
    found = phases(batches=8, epochs=3, warmup=1, cooldown=1, gs=3, wait=2, lanes=2)
    assert found == (
        "b0<0@0 b1<1@0 b0<0@0 b1<1@0 b0<0@0 b1<1@0 b0<0@0 b1<1@0 "
        "c0 . <0@2 c1 . <1@2 . c0<0@0! "
        "b1<1@0 b0<0@0 b1<1@0 b0<0@0 b1<1@0 b0<0@0 b1<1@0 b0<0@0"
    ).replace(" <", " .<")


@pytest.mark.parametrize("skip", [0, 4])
def test_parameters_are_copied_before_the_next_update_changes_them(skip):
    """Whatever thread is late: the copy of a step comes first in the order of all operations."""
    plan = made(gs=4, wait=2, local_skip=skip, batches=12, warmup=0, cooldown=0)
    programs = [STRATEGIES["daso"].lower(plan, step, {}) for step in range(12)]
    copied = 0
    for role in range(2):
        order, last = networkx.DiGraph(), dict[str, tuple[int, str]]()
        for step, program in enumerate(programs):
            for op in program.roles[role].ops:
                order.add_edges_from(
                    ((step - x.steps_back, x.name), (step, op.name)) for x in op.after
                )
                if op.stream in last:
                    order.add_edge(last[op.stream], (step, op.name))
                last[op.stream] = step, op.name
        for step, program in enumerate(programs[:-1]):
            for op in program.roles[role].ops:
                if op.kind is Kind.ENCODE and plan.launches[op.launch].payload == "parameter":
                    copied += 1
                    after = networkx.descendants(order, (step, op.name))
                    updates = {
                        (step + 1, x.name)
                        for x in programs[step + 1].roles[role].ops
                        if x.kind is Kind.APPLY and x.launch >= 0
                    }
                    assert updates
                    assert updates <= after
    assert copied


def test_a_plateau_halves_the_skip_from_the_next_epoch_on():
    losses = {f"{4 * epoch + 3}/epoch/decide": 1.0 for epoch in range(4)}
    found = phases(losses, batches=4, warmup=0, gs=2, wait=1, lanes=1, patience=2, steps=20)
    assert found.split()[:4] == ["c0", ".<0@1", ".", "c0<0@0!"]
    assert found.split()[16:] == ["c0", "c0<0@1", ".<0@1", "c0<0@0!"]


def test_ranks_follow_their_own_gradients_between_exchanges():
    """As the published code does with these skips, read step by step in its source."""
    found = phases(batches=16, warmup=1, gs=8, wait=2, local_skip=3, lanes=1, steps=32).split()
    assert not any("-" in word for word in found[:16])
    own = [step for step, word in enumerate(found[16:]) if "-" in word]
    assert own == [4, 5, 7, 11, 13, 14]


def test_a_plateau_halves_the_local_skip_and_the_end_of_all_skips_sets_it():
    control, found = Plateau(skip=4, wait=2, local=4, most=16, patience=0), []
    for loss in (1.0, 1.0, 1.0, 1.0, 1.0):
        control = control.after(loss)
        found.append((control.skip, control.local))
    assert found == [(4, 4), (2, 2), (1, 1), (16, 4), (8, 2)]
    assert replace(control, local=0).after(1.0).local == 0


@given(
    skip=st.integers(1, 40),
    wait=st.integers(1, 40),
    most=st.integers(1, 64),
    losses=st.lists(st.floats(0.1, 10.0), max_size=30),
)
def test_an_exchange_is_merged_before_the_next_one_whatever_the_losses(skip, wait, most, losses):
    control = Plateau(skip=skip, wait=min(wait, skip), local=0, most=most, patience=0)
    for loss in losses:
        control = control.after(loss)
        assert 0 <= control.wait <= control.skip


@given(
    batches=st.integers(1, 12),
    warmup=st.integers(0, 2),
    gs=st.integers(0, 5),
    wait=st.integers(0, 5),
    lanes=st.integers(1, 3),
)
def test_places_take_turns_and_every_exchange_is_merged_once_in_its_epoch(
    batches, warmup, gs, wait, lanes
):
    wait = min(wait, gs)
    settings = {**DASO.defaults, "batches": batches, "warmup": warmup, "gs": gs, "wait": wait}
    now = [epoch_of(step, settings, lanes, {}).at(step) for step in range(4 * batches)]
    starts = [each.starts for each in now if each.starts]
    assert [each.lane for each in starts] == [i % lanes for i in range(len(starts))]
    merges = [each.merges for each in now if each.merges]
    assert sorted(merges, key=lambda found: found.start) == starts
    for step, each in enumerate(now):
        if each.merges:
            assert each.merges.start // batches == step // batches
            assert step == each.merges.start + (each.merges.waited or 0)
        last = step % batches == batches - 1
        assert not last or (each.starts == each.merges and each.starts.waited is None)


# --- The controller. ---


def test_the_controllers_trace():
    control = Plateau(skip=4, wait=2, local=0, most=8, patience=2)
    found = []
    for loss in (10, 9.6, 9.4, 9.4, 9.3, 9.2, 5, 4.9, 4.8, 4.9, 5, 5, 5, 5, 5, 5, 4, 3.9, 3.9, 3.9):
        control = control.after(loss)
        found.append((control.skip, control.wait, control.bad))
    assert found == [
        (4, 2, 0),  # the first loss is the best
        (4, 2, 1),  # 9.6 is not below 9.5
        (4, 2, 0),  # 9.4 is
        (4, 2, 1),
        (4, 2, 2),
        (2, 1, 0),  # more than two epochs without a better one: halved
        (2, 1, 0),
        (2, 1, 1),
        (2, 1, 2),
        (1, 1, 0),
        (1, 1, 1),
        (1, 1, 2),
        (8, 2, 0),  # from 1 back to the most
        (8, 2, 1),
        (8, 2, 2),
        (4, 1, 0),
        (4, 1, 0),
        (4, 1, 1),
        (4, 1, 2),
        (2, 1, 0),
    ]


def test_a_loss_that_is_no_number_is_never_better():
    control = Plateau(skip=4, wait=1, local=0, most=8, patience=0).after(float("nan"))
    assert (control.skip, control.best) == (2, float("inf"))


# --- The merge. ---


@given(
    nodes=st.integers(1, 5),
    waited=st.none() | st.integers(0, 4),
    numel=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_the_merge_is_the_formula_to_the_bit(nodes, waited, numel, seed):
    rng = np.random.default_rng(seed)
    local = rng.standard_normal(numel).astype(np.float32)
    sent = rng.standard_normal((nodes, numel)).astype(np.float32)
    total = sent.sum(axis=0, dtype=np.float32)
    before = local.copy()
    op = Op(kind=Kind.MERGE, name="m", stream="decode", launch=0, waited=waited)
    plan = made(nodes, 1)
    DASO.merge(plan, op, local, total, {})
    if waited is None:
        want = total / np.float32(nodes)
    else:
        weight = np.float32(2 * waited if waited else 1)
        want = (weight * before + total) / (weight + np.float32(nodes))
    np.testing.assert_array_equal(local.view(np.uint32), want.view(np.uint32))


def test_ranks_that_agree_stay_where_they_are():
    op = Op(kind=Kind.MERGE, name="m", stream="decode", launch=0, waited=2)
    local = np.array([1.5, -2.0], np.float32)
    DASO.merge(made(4, 1), op, local, np.float32(4) * local, {})
    np.testing.assert_array_equal(local, np.array([1.5, -2.0], np.float32))


# --- The broadcast. ---


@given(ranks=st.integers(1, 9), data=st.data())
def test_a_chain_brings_every_block_to_every_member(ranks, data):
    root = data.draw(st.integers(0, ranks - 1))
    check(chain(ranks, root))


# --- Learning. ---


def learned(local_skip):
    """The parameters of all ranks after two steps; the second one exchanges nothing."""
    plan = strategy_plan(
        profile_net(NETS["mlp:8:2"], 6),
        machine(2, 2),
        "daso",
        **{"warmup": 0, "gs": 4, "wait": 0, "batches": 8, "optimizer": "sgd"},
        local_skip=local_skip,
    )
    settings = Settings(optimizer="sgd", rate=0.1, batch=24)
    training = InProcessTraining(NETS["mlp:8:2"], DATA["digits"](0), plan, settings)
    for step in range(2):
        training.step(step)
    return training, [learner.values for learner in training.learners]


def test_ranks_that_follow_their_own_gradients_are_on_average_where_averaged_ones_are():
    (usual, together), (fewer, own) = learned(0), learned(5)
    for name in own[0]:
        for first in (0, 2):  # the ranks of a node
            assert not np.array_equal(own[first][name], own[first + 1][name])
            mean = (own[first][name] + own[first + 1][name]) / 2
            np.testing.assert_allclose(mean, together[first][name], rtol=1e-5, atol=1e-7)
    assert fewer.sent < usual.sent


def test_own_gradients_are_no_part_of_a_sum():
    with pytest.raises(CommschedError, match="local_skip is for gradients that are averaged"):
        DASO.lower(replace(made(local_skip=2), mean=False), 0, {})


# --- Plans. ---


def test_a_tensor_may_be_larger_than_two_chunks(monkeypatch):
    monkeypatch.setattr("commsched.planner.averages.CHUNK", 1000)
    plan = made(sizes=(2500, 300))
    cycling = [launch for launch in plan.launches if launch.purpose == "cycling"]
    assert [[tuple(piece) for piece in launch.pieces] for launch in cycling] == [
        [("l0.weight", 0, 1000)],
        [("l0.weight", 1000, 2000)],
        [("l0.weight", 2000, 2500), ("l1.weight", 0, 300)],
    ]
    assert simulate(plan, 6).end > 0


def test_blocking_exchanges_are_rounded_unless_they_may_not_be():
    for codec in ("bf16", "dense"):
        blocking = [x for x in made(blocking=codec).launches if x.purpose == "blocking"]
        assert {launch.method.partition("+")[2] for launch in blocking} == {codec}


def test_plans_of_other_strategies_keep_their_keys():
    plan = strategy_plan(graph([30, 20]), machine(2, 2), "sync")
    keys = set().union(*plan_file.to_data(plan)["launches"])
    assert not keys & {"among", "purpose"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payload": "gradient"}, "launch 'g0' exchanges gradients among 'peers' every 4 steps"),
        ({"lag": 3}, "launch 'g0' exchanges parameters among 'peers' every 4 steps, merged 3"),
        ({"among": "node"}, "launch 'g0' exchanges parameters among 'node'"),
        ({"method": "all-gather+coo"}, "parameters are summed by an all-reduce such as"),
        ({"method": "broadcast"}, "parameters are summed by an all-reduce"),
        ({"purpose": "average"}, "launch 'g0' has purpose 'average'; allowed: , blocking, cyc"),
    ],
)
def test_a_launch_that_means_something_else_is_refused(change, message):
    plan = made()
    rows = tuple(replace(x, **change) if x.name == "g0" else x for x in plan.launches)
    with pytest.raises(CommschedError, match=message):
        DASO.lower(replace(plan, launches=rows), 0, {})


def test_groups_and_teams_exclude_each_other():
    plan = made()
    rows = tuple(replace(x, group=(0, 1)) if x.name == "g0" else x for x in plan.launches)
    with pytest.raises(CommschedError, match="give ranks in 'group', or 'among', not both"):
        replace(plan, launches=rows).check()


def test_nodes_of_different_sizes_are_refused():
    on = replace(machine(2, 2), node_of_rank=(0, 0, 0, 1))
    with pytest.raises(CommschedError, match="different numbers of ranks"):
        made(on=on)


def test_impossible_parameters_are_refused():
    for params, message in (
        ({"gs": "many"}, "gs cannot be 'many'; allowed: 0 to"),
        ({"gs": -1}, "gs cannot be -1; allowed: 0 to"),
        ({"blocking": 3}, "blocking cannot be 3; allowed: bf16, dense"),
        ({"gs": 2, "wait": 3}, "wait cannot be 3 with gs 2"),
    ):
        with pytest.raises(CommschedError, match=message):
            made(**params)


def test_parameters_of_a_command_line_are_words():
    assert made(gs="2", wait="2").params == made(gs=2, wait=2).params


def test_a_file_says_among_whom_in_three_words():
    data = plan_file.to_data(made())
    assert {row.get("among", "all") for row in data["launches"]} == {"node", "peers"}
    data["launches"][0]["among"] = "rack"
    with pytest.raises(CommschedError, match=r"'rack'.*among.*allowed: 'all', 'node', 'peers'"):
        plan_file.from_data(data, "plan.json")
