"""The Exchanger in a training loop's place, on however many ranks there are."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

import commsched
from commsched.errors import CommschedError
from commsched.exchange import recorded_gradients as recorded
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan import file as plan_file
from commsched.plan.model import Launch, Plan
from commsched.planner.method_schedule import begun, scheduled
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.timeline import check
from commsched.timeline import file as timeline_file
from commsched.timeline.measure import overlaps
from tests.support.ranks import WORLD

SHAPES = {"a": (3, 5), "b": (7,), "c": (4, 2, 2), "d": (11,), "e": (6, 6)}
# "c" is split over two launches and "e" over three; "s" has no tensors.
LAYERS = {"first": "ab", "second": "cd", "s": "", "last": "e"}
PIECES = {
    ("b0", "last"): [("e", 0, 5)],
    ("b1", "last"): [("e", 20, 36)],
    ("b2", "second"): [("c", 0, 9), ("d", 0, 11), ("e", 5, 20)],
    ("b3", "first"): [("a", 0, 15), ("c", 9, 16), ("b", 0, 7)],
}
BACKWARD = ["e", "d", "c", "b", "a"]
METHODS = ["ring+dense", "direct+dense", "doubling+bf16", "all-gather+coo"]


def make_plan(comm=WORLD, methods=("ring+dense",), mean=True, seed=0):
    """Four buckets for all ranks of `comm`, which use the methods in turn."""
    layers, before = [], ()
    for name, tensors in LAYERS.items():
        shapes = [Tensor(name=t, shape=SHAPES[t]) for t in tensors]
        layers.append(Layer(name=name, after=before, tensors=tuple(shapes), forward=0, backward=0))
        before = (name,)
    launches = tuple(
        Launch(
            name=name,
            pieces=tuple(Piece(*p) for p in pieces),
            after=after,
            method=methods[i % len(methods)],
            stream="inside",
            priority=i,
        )
        for i, ((name, after), pieces) in enumerate(PIECES.items())
    )
    machine = resized(machine_file.load("localhost"), 1, comm.size)
    graph = Net(name="tiny", layers=tuple(layers))
    return Plan(net=graph, machine=machine, launches=launches, mean=mean, seed=seed)


def gradients(step, rank):
    """Small whole numbers: their sums are exact in float32 and bfloat16, whatever the order."""
    random = np.random.default_rng([step, rank])
    return {n: random.integers(-8, 9, s).astype(np.float32) for n, s in SHAPES.items()}


def total(step, ranks):
    each = [gradients(step, rank) for rank in range(ranks)]
    return {name: sum(one[name] for one in each) for name in SHAPES}


def one_step(exchanger, step, rank, order=BACKWARD):
    mine = gradients(step, rank)
    for name in order:
        exchanger.ready(name, mine[name])
    return {name: exchanger.wait(name).copy() for name in exchanger.names}


def equal(got, want):
    """Compare on all ranks; the ranks fail together."""
    wrong = [n for n in SHAPES if got[n].shape != SHAPES[n] or not np.array_equal(got[n], want[n])]
    assert agree.gather_text(",".join(wrong), WORLD) == [""] * WORLD.size


def refused(work, *sentence):
    """All ranks must be refused with a sentence that has these words."""
    try:
        work()
        said = "nothing was refused"
    except CommschedError as error:
        said = str(error)
    everywhere = agree.gather_text(said, WORLD)
    assert all(word in text for text in everywhere for word in sentence), everywhere


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


@pytest.mark.parametrize("handed", [0, 1, 3, 5])
def test_leaving_in_the_middle_of_a_step_ends_well(handed):
    with Exchanger(make_plan(methods=METHODS), WORLD, timeout=20) as exchanger:
        one_step(exchanger, 0, WORLD.rank)
        for name in BACKWARD[:handed]:
            exchanger.ready(name, gradients(1, WORLD.rank)[name])


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


@pytest.fixture
def exchanger():
    with Exchanger(make_plan(), WORLD) as made:
        yield made


def test_what_is_no_gradient_of_this_net_is_refused(exchanger):
    good = gradients(0, WORLD.rank)
    refused(
        lambda: exchanger.ready("x", good["a"]), "no tensor named 'x' in net 'tiny'", "known: e"
    )
    refused(lambda: exchanger.wait("x"), "no tensor named 'x' in net 'tiny'")
    refused(lambda: exchanger.ready("b", [0.0] * 7), "'b': a gradient is a NumPy array, got list")
    refused(lambda: exchanger.ready("b", np.zeros(7)), "'b': a gradient is float32, got float64")
    refused(lambda: exchanger.ready("a", good["a"].T), "'a'", "must be [3, 5], got [5, 3]")
    refused(lambda: exchanger.ready("a", good["a"].ravel()), "'a'", "must be [3, 5], got [15]")
    equal(one_step(exchanger, 0, 0), gradients(0, 0))  # nothing of that has left a trace


def test_a_step_out_of_order_is_refused(exchanger):
    good = gradients(0, 0)
    refused(lambda: exchanger.wait("a"), "step 0: tensor 'a' was waited for before it was handed")
    exchanger.ready("d", good["d"])
    refused(lambda: exchanger.ready("d", good["d"]), "'d' was handed over twice; 'e' is still")
    refused(lambda: exchanger.wait("a"), "step 0: tensor 'a' was waited for before it was handed")
    refused(lambda: exchanger.wait("d"), "'d' was waited for before 'e' was handed over")
    for name in "ecba":
        exchanger.ready(name, good[name])
    early = exchanger.wait("e").copy()
    refused(lambda: exchanger.ready("e", good["e"]), "step 0: tensor 'c' was not waited for")
    equal({name: exchanger.wait(name) for name in BACKWARD[1:]} | {"e": early}, good)
    refused(lambda: exchanger.wait("a"), "step 1: tensor 'a' was waited for before it was handed")
    refused(lambda: (exchanger.ready("e", good["e"]), exchanger.wait("a")), "step 1: tensor 'a'")


def test_outside_of_its_block_it_is_refused():
    exchanger = Exchanger(make_plan(), WORLD)
    refused(lambda: exchanger.wait("a"), "inside a with block")
    with exchanger:
        one_step(exchanger, 0, WORLD.rank)
        refused(exchanger.__enter__, "works in one with block only")
    refused(lambda: exchanger.ready("a", gradients(0, 0)["a"]), "inside a with block")
    refused(exchanger.__enter__, "works in one with block only")


def test_plans_that_do_not_fit_are_refused_on_all_ranks(tmp_path):
    plan, size = make_plan(), WORLD.size
    more = replace(plan, machine=resized(plan.machine, 1, size + 1))
    refused(lambda: Exchanger(more, WORLD), f"for {size + 1} ranks, but {size} were started")
    changed = replace(plan, launches=plan.launches[1:])
    refused(lambda: Exchanger(changed, WORLD), "tensor 'e': element 0 is exchanged never")
    partly = replace(plan.launches[0], group=tuple(range(size)))
    part = replace(more, launches=(partly, *plan.launches[1:]))
    refused(lambda: Exchanger(part, WORLD), f"'b0' exchanges among {size} of {size + 1} ranks")
    refused(lambda: Exchanger(tmp_path / "no.json", WORLD), "no.json")
    if size > 1:
        other = make_plan(seed=WORLD.rank)
        refused(lambda: Exchanger(other, WORLD), "the ranks differ in the plan")
        where = tmp_path / "t.json" if WORLD.rank else None
        refused(lambda: Exchanger(plan, WORLD, timeline=where), "timeline=FILE on all ranks, or")
        refused(lambda: Exchanger(plan, WORLD, record=where), "record=FILE on all ranks, or")


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    plan = make_plan()
    refused(lambda: Exchanger(plan, None), "must be an mpi4py Intracomm", "got NoneType")
    refused(lambda: Exchanger(plan, MPI.COMM_NULL), "got COMM_NULL")
    for timeout in (0, -1.0, float("nan")):
        refused(lambda t=timeout: Exchanger(plan, WORLD, timeout=t), "timeout must be more than 0")
    nowhere = tmp_path / "missing" / "t.json"
    refused(lambda: Exchanger(plan, WORLD, timeline=nowhere), "cannot be written there")
    refused(lambda: Exchanger(plan, WORLD, record=nowhere), "cannot be written there")


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
