"""The Exchanger in a training loop's place, on however many ranks there are."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

import commsched
from commsched.exchange import recorded_gradients as recorded
from commsched.net.bucket import Piece
from commsched.plan import file as plan_file
from commsched.planner.method_schedule import begun, scheduled
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.timeline import check
from commsched.timeline import file as timeline_file
from tests.support.overlaps import overlaps
from tests.support.ranks import WORLD
from tests.support.tiny_exchange import (
    BACKWARD,
    LAYERS,
    METHODS,
    PIECES,
    SHAPES,
    equal,
    gradients,
    make_plan,
    one_step,
    refused,
    total,
)


@pytest.mark.by_day(10)
@pytest.mark.groups(1, 3, 4, 8)
@pytest.mark.parametrize(
    ("method", "mean"),
    [(name, number % 2 == 1) for number, name in enumerate([*METHODS, "native+dense"])],
)
def test_two_steps_sum_like_numpy(method, mean):
    got = []
    with Exchanger(make_plan(methods=[method], mean=mean), WORLD) as exchanger:
        got = [one_step(exchanger, step, WORLD.rank) for step in (0, 1)]
    for step in (0, 1):
        divisor = np.float32(WORLD.size if mean else 1)
        want = total(step, WORLD.size)
        equal(got[step], {name: want[name] / divisor for name in SHAPES})


def test_the_package_offers_it():
    assert commsched.Exchanger is Exchanger


def test_gradients_may_come_in_any_order_and_another_one_on_every_rank():
    order = list(np.random.default_rng(WORLD.rank).permutation(BACKWARD))
    with Exchanger(make_plan(methods=METHODS, mean=False), WORLD) as exchanger:
        got = [one_step(exchanger, step, WORLD.rank, order) for step in range(3)]
    for step in range(3):
        equal(got[step], total(step, WORLD.size))


def test_an_array_may_be_reused_at_once_and_need_not_be_contiguous():
    mine, got = gradients(0, WORLD.rank), {}
    with Exchanger(make_plan(mean=False), WORLD) as exchanger:
        for name in BACKWARD:
            spread = np.full((*SHAPES[name], 2), np.nan, np.float32)[..., 0]
            spread[...] = mine[name]
            exchanger.ready(name, spread)
            spread[...] = np.nan
        got = {name: exchanger.wait(name) for name in exchanger.names}
    equal(got, total(0, WORLD.size))


def test_a_result_may_be_handed_over_as_the_next_gradient():
    with Exchanger(make_plan(mean=True), WORLD) as exchanger:
        mine = gradients(0, 0)  # the same on all ranks, so the mean is the gradient
        for name in BACKWARD:
            exchanger.ready(name, mine[name])
        views = {name: exchanger.wait(name) for name in BACKWARD}
        for name in BACKWARD:
            exchanger.ready(name, views[name])
        again = {name: exchanger.wait(name).copy() for name in exchanger.names}
    equal(again, mine)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("method", ["ring+dense", "all-gather+topk", "powersgd:2", "zen"])
def test_lent_gradients_give_the_same_bits_and_may_be_earlier_sums(method):
    """Each step adds a gradient to the sum of the step before, in its memory."""

    def run(lent):
        given = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        with Exchanger(make_plan(methods=[method], mean=True), WORLD) as exchanger:
            for step in range(3):
                for name, own in gradients(step, WORLD.rank).items():
                    given[name] += own
                    exchanger.ready(name, given[name], lent=lent)
                    if not lent:
                        given[name][...] = np.nan
                given = {name: exchanger.wait(name) for name in exchanger.names}
                if not lent:
                    given = {name: value.copy() for name, value in given.items()}
            return {name: value.copy() for name, value in given.items()}

    equal(run(lent=True), run(lent=False))


def test_results_may_be_taken_while_others_are_missing():
    mine, want = gradients(0, WORLD.rank), total(0, WORLD.size)
    with Exchanger(make_plan(mean=False), WORLD) as exchanger:
        for name in ("e", "d", "c"):
            exchanger.ready(name, mine[name])
        early = exchanger.wait("d").copy(), exchanger.wait("e").copy()
        for name in ("a", "b"):
            exchanger.ready(name, mine[name])
        got = {name: exchanger.wait(name).copy() for name in exchanger.names}
    equal(got | {"d": early[0], "e": early[1]}, want)
    equal(got, want)


def test_a_whole_tensor_comes_back_without_a_copy():
    with Exchanger(make_plan(), WORLD) as exchanger:
        for name, gradient in gradients(0, WORLD.rank).items():
            exchanger.ready(name, gradient)
        shared = np.shares_memory(exchanger.wait("a"), exchanger.wait("a"))
    assert shared


def test_the_same_bits_run_after_run_and_on_every_rank():
    def run():
        random = np.random.default_rng(WORLD.rank)
        mine = {name: random.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}
        with Exchanger(make_plan(methods=METHODS), WORLD) as exchanger:
            for name in BACKWARD:
                exchanger.ready(name, mine[name])
            return b"".join(exchanger.wait(name).tobytes() for name in sorted(SHAPES)).hex()

    first, second = run(), run()
    assert set(agree.gather_text(first, WORLD)) == set(agree.gather_text(second, WORLD)) == {first}


def test_a_sub_communicator_has_ranks_of_its_own():
    comm = WORLD.Split(WORLD.rank % 2, -WORLD.rank)
    with Exchanger(make_plan(comm, mean=False), comm) as exchanger:
        got = one_step(exchanger, 0, comm.rank)
    equal(got, total(0, comm.size))
    comm.Free()


def test_the_caller_may_use_mpi_meanwhile():
    ranks, mine = [], gradients(0, WORLD.rank)
    with Exchanger(make_plan(mean=False), WORLD) as exchanger:
        for name in BACKWARD:
            exchanger.ready(name, mine[name])
            ranks.append(agree.gather_numbers(WORLD.rank, WORLD))
        got = {name: exchanger.wait(name).copy() for name in exchanger.names}
    assert ranks == [list(range(WORLD.size))] * len(BACKWARD)
    equal(got, total(0, WORLD.size))


@pytest.mark.groups(2, 3)
def test_another_plan_from_the_next_step_on_loses_nothing():
    """A plan that drops, then one that does not: all sums together are all gradients."""
    lossy, dense = make_plan(methods=["all-gather+topk:0.2"], mean=False), make_plan(mean=False)
    parts = [piece for row in PIECES.values() for piece in row if piece[0] != "c"]
    cut = [*([p] for p in parts[:2]), [*parts[2:], ("c", 0, 9)], [("c", 9, 16)]]
    apart, early = (  # other buckets, too; "a" and "b" are not ready after "second"
        replace(
            dense,
            launches=tuple(
                replace(launch, pieces=tuple(Piece(*p) for p in pieces), after=after)
                for launch, pieces, after in zip(dense.launches, cut, layers, strict=True)
            ),
        )
        for layers in (["last", "last", "first", "first"], [each.after for each in dense.launches])
    )
    got = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with Exchanger(lossy, WORLD) as exchanger:
        exchanger.ready("e", gradients(0, WORLD.rank)["e"])
        refused(lambda: exchanger.follow(dense, "test"), "a step is under way; follow another plan")
        for name in BACKWARD[1:]:
            exchanger.ready(name, gradients(0, WORLD.rank)[name])
        for step, plan in enumerate((lossy, apart, dense)):
            if step:
                refused(lambda: exchanger.follow(early, "test"), "'a' is ready only after layer")
                exchanger.follow(plan, "test")
                assert exchanger.plan.hash == plan.hash
            sums = one_step(exchanger, step, WORLD.rank) if step else None
            for name in SHAPES:
                got[name] += exchanger.wait(name) if sums is None else sums[name]
    equal(got, {n: sum(total(step, WORLD.size)[n] for step in range(3)) for n in SHAPES})


@pytest.mark.groups(2)
def test_a_state_goes_on_under_an_error_budget():
    """The budget is watched from the first step after the restored ones."""
    plan = replace(make_plan(methods=["all-gather+topk:0.2"], mean=False), max_error=1e6)
    with Exchanger(plan, WORLD) as exchanger:
        for step in range(2):
            one_step(exchanger, step, WORLD.rank)
        kept = deepcopy(exchanger.kept())  # arrays of the engine's, which later steps change
        want = [one_step(exchanger, step, WORLD.rank) for step in range(2, 6)]
    with Exchanger(plan, WORLD) as again:
        again.restore(kept)
        for step in range(2, 6):
            equal(one_step(again, step, WORLD.rank), want[step - 2])


@pytest.mark.groups(2)
def test_states_of_other_ranks_and_of_different_steps_are_refused_where_they_are_restored():
    plan = make_plan(methods=["all-gather+topk:0.2"])
    with Exchanger(plan, WORLD) as exchanger:
        one_step(exchanger, 0, WORLD.rank)
        first = deepcopy(exchanger.kept())
        one_step(exchanger, 1, WORLD.rank)
        second = deepcopy(exchanger.kept())
    assert first["rank"] == WORLD.rank
    with Exchanger(plan, WORLD) as again:
        swapped = second | {"rank": 1 - WORLD.rank if WORLD.rank < 2 else WORLD.rank}
        refused(lambda: again.restore(swapped), "the state is of rank 1, not of rank 0")
        if WORLD.size > 1:
            told = "that of rank 0 before step 1, that of rank 1 before step 2"
            refused(lambda: again.restore(first if WORLD.rank == 0 else second), told)
        again.restore(second)
        one_step(again, 2, WORLD.rank)


@pytest.mark.groups(2)
def test_a_state_between_a_change_of_plan_and_the_next_step_holds_what_was_not_sent():
    methods = "all-gather+topk:0.2", "ring+dense"
    lossy, dense = (make_plan(methods=[method], mean=False) for method in methods)
    with Exchanger(lossy, WORLD) as exchanger:
        sent = one_step(exchanger, 0, WORLD.rank)
        exchanger.follow(dense, "test")
        kept = deepcopy(exchanger.kept())
        want = one_step(exchanger, 1, WORLD.rank)
    both = {name: total(0, WORLD.size)[name] + total(1, WORLD.size)[name] for name in SHAPES}
    equal({name: sent[name] + want[name] for name in SHAPES}, both)
    with Exchanger(dense, WORLD) as again:
        carried = kept["carried"]
        wrong = kept | {"carried": {"elsewhere": next(iter(carried.values()))}}
        refused(lambda: again.restore(wrong), "values of launch elsewhere; this plan has not")
        again.restore(kept)
        equal(one_step(again, 1, WORLD.rank), want)
        assert not again.kept()["carried"]


@pytest.mark.groups(2)
def test_spans_before_the_first_step_and_turns_after_another_plan_are_in_order(tmp_path):
    path = tmp_path / "t.json"
    plan = make_plan()
    last = plan.launches[-1]
    joined = [piece for each in plan.launches[1:] for piece in each.pieces]
    fewer = replace(plan, launches=(plan.launches[0], replace(last, pieces=tuple(joined))))
    with Exchanger(plan, WORLD, timeline=path) as exchanger:
        exchanger.add_span("load", now(), now())
        one_step(exchanger, 0, WORLD.rank)  # takes a sum of the last of four buckets at the end
        exchanger.follow(fewer, "test")
        exchanger.turn()
        one_step(exchanger, 1, WORLD.rank)
        exchanger.turn()
    if WORLD.rank == 0:
        spans = [span for span in timeline_file.read(path) if span.rank == 0]
        assert [span.step for span in spans if span.name == "load"] == [0]
        assert [span.step for span in spans if span.name == "b3/apply"] == [0, 1]


@pytest.mark.groups(2, 3)
def test_launches_that_begin_later_take_over_and_lose_nothing():
    """A plan that drops in its first two steps: all sums together are all gradients."""
    lossy = make_plan(methods=["all-gather+topk:0.2"], mean=False)
    plan = scheduled(lossy, {2: "ring+dense"}, refresh=0)
    got = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    dense = []
    with Exchanger(plan, WORLD) as exchanger:
        for step in range(4):
            dense.append(one_step(exchanger, step, WORLD.rank))
            for name in SHAPES:
                got[name] += dense[-1][name]
    equal(got, {n: sum(total(step, WORLD.size)[n] for step in range(4)) for n in SHAPES})
    equal(dense[3], total(3, WORLD.size))


@pytest.mark.groups(2)
def test_dense_first_steps_are_those_of_a_dense_plan_and_later_ones_of_the_lossy_plan():
    lossy, dense = make_plan(methods=["all-gather+topk:0.2"]), make_plan(methods=["ring+dense"])
    both = begun(lossy, 2, "ring+dense")
    with Exchanger(dense, WORLD) as first:
        want = [one_step(first, step, WORLD.rank) for step in range(2)]
    with Exchanger(lossy, WORLD) as then:
        want += [one_step(then, step, WORLD.rank) for step in (2, 3)]
    with Exchanger(both, WORLD) as exchanger:
        got = [one_step(exchanger, step, WORLD.rank) for step in range(4)]
        kept = exchanger.kept()
    for mine, theirs in zip(got, want, strict=True):
        equal(mine, theirs)
    with Exchanger(lossy, WORLD) as then, Exchanger(both, WORLD) as again:
        for step in (2, 3):
            one_step(then, step, WORLD.rank)
        again.restore(kept)
        equal(one_step(again, 4, WORLD.rank), one_step(then, 4, WORLD.rank))


@pytest.mark.by_day(4)
@pytest.mark.parametrize("handed", [0, 1, 3, 5])
def test_leaving_in_the_middle_of_a_step_ends_well(handed):
    with Exchanger(make_plan(methods=METHODS), WORLD, timeout=20) as exchanger:
        one_step(exchanger, 0, WORLD.rank)
        for name in BACKWARD[:handed]:
            exchanger.ready(name, gradients(1, WORLD.rank)[name])


@pytest.mark.by_day(0)
@pytest.mark.groups(1)
@pytest.mark.skipif(WORLD.size > 2, reason="many take long where ranks share cores")
def test_many_exchangers_give_their_communicators_back():
    others = [WORLD.Dup() for _ in range(1600)]  # of 2048 that MPICH has
    plan = make_plan()
    for _ in range(150):  # of three each
        with Exchanger(plan, WORLD):
            pass
    for each in others:
        each.Free()


def test_recorded_gradients_are_those_of_the_first_rank_in_the_order_of_the_steps(tmp_path):
    folder = agree.gather_text(str(tmp_path), WORLD)[0]
    plan, path = make_plan(), f"{folder}/gradients.npz"
    steps = recorded.COUNT + 3  # the first three are forgotten
    with Exchanger(plan, WORLD, record=path) as exchanger:
        for step in range(steps):
            one_step(exchanger, step, WORLD.rank)
    found = recorded.read(path, plan.net)
    assert sorted(found.gradients) == sorted(SHAPES)
    for name, values in found.gradients.items():
        kept = [gradients(step, 0)[name].ravel() for step in range(3, steps)]
        np.testing.assert_array_equal(values, kept)
    WORLD.Barrier()


def test_the_timeline_has_the_plans_operations(tmp_path):
    folder = agree.gather_text(str(tmp_path), WORLD)[0]
    plan, path = make_plan(methods=METHODS), f"{folder}/measured.json"
    before = plan_path(folder, plan)
    with Exchanger(before, WORLD, timeline=path) as exchanger:
        for step in range(3):
            one_step(exchanger, step, WORLD.rank)
    WORLD.Barrier()
    timeline = timeline_file.read(path)
    WORLD.Barrier()
    names = {f"{b}/{kind}" for b, _ in PIECES for kind in ("encode", "exchange", "decode")}
    backward = {f"backward/{layer}" for layer in LAYERS}
    for rank in range(WORLD.size):
        for step in range(3):
            spans = [s for s in timeline if (s.rank, s.step) == (rank, step)]
            assert names | backward <= {s.name for s in spans}
    assert (timeline.kind, timeline.plan_hash, timeline.ranks) == (
        "measured",
        plan.hash,
        WORLD.size,
    )
    assert timeline.header.steps == 3
    assert check.problem(timeline) is None
    assert overlaps(timeline, tolerance=1e-6) == []


def plan_path(folder, plan):
    """The plan's file, written by rank 0."""
    path = f"{folder}/plan.json"
    if WORLD.rank == 0:
        plan_file.write(path, plan)
    WORLD.Barrier()
    return path
