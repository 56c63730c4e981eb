"""The error budget on real ranks: a tensor leaves it, all ranks fall back, nothing is lost."""

from functools import cache

import numpy as np
import pytest

from commsched.run import session
from commsched.run.engine.worker import Emulated
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.session import RunOptions
from commsched.simulate.engine import simulate
from commsched.simulate.replay import replay
from commsched.timeline import file as timeline_file
from tests.support.ranks import WORLD
from tests.support.small_plans import graph, machine, plan

pytestmark = pytest.mark.groups(3)
STEPS, TURN = 12, 5  # from step TURN on, one tensor's gradient has no large elements any more
SIZES = [400, 500, 300]
BUDGET = 0.5
TOPK = "all-gather+topk:0.05"


class Turning(Emulated):
    """The gradient of one launch is a few large elements at first, and alike everywhere later."""

    def __init__(self, made, rank):
        super().__init__(made, rank)
        self.given, self.taken = {}, {}

    def gradient(self, step, launch, out):
        rng = np.random.default_rng([step, launch, WORLD.rank])
        out[:] = rng.standard_normal(len(out)) * 1e-3
        out[:: len(out) // 10] += 1.0
        if launch == 1 and step >= TURN:
            out[:] = rng.standard_normal(len(out))
        self.given[step, launch] = out.astype(np.float64)

    def result(self, step, launch, values):
        self.taken[step, launch] = values.copy()


@pytest.fixture(scope="module")
def turned(shared):
    """Run a plan whose launches are all lossy: it, the worker, and the timeline on rank 0.

    Each plan is run once for all tests.
    """

    @cache
    def run(codec, budget=BUDGET, overlap="forward"):
        shape = (2, WORLD.size // 2) if WORLD.size % 2 == 0 else (1, WORLD.size)
        params = {"overlap": overlap}
        net = graph(SIZES, 1e-4)
        made = plan(net, machine(*shape), [codec], max_error=budget, params=params)
        workers = []

        def worker(of, rank):
            workers.append(Turning(of, rank))
            return workers[0]

        options = RunOptions(steps=STEPS, worker=worker)
        timeline = session.run(made, WORLD, shared / "m.json", options)
        return made, workers[0], timeline

    return run


@pytest.mark.by_day(1)
@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_a_tensor_that_leaves_its_budget_falls_back_on_all_ranks_in_one_step(turned, overlap):
    _, worker, timeline = turned(TOPK, overlap=overlap)
    told = [-1.0, -1.0]
    if timeline is not None:
        (fall,) = timeline.header.fallbacks
        (switch,) = timeline.header.switches
        assert fall.tensor == "l1.weight"
        assert fall.step == TURN
        assert fall.error > fall.budget == BUDGET
        assert fall.methods == (TOPK,)
        assert switch.step == fall.since > TURN
        told = [float(fall.since), 1.0]
    since = int(agree.broadcast_numbers(0, told, WORLD)[0])
    # A top-k sum has zeros, a dense sum of normal values has none: that is when this rank switched.
    dense = [step for step in range(STEPS) if np.count_nonzero(worker.taken[step, 1]) == SIZES[1]]
    assert agree.gather_numbers(min(dense), WORLD) == [since] * WORLD.size
    assert dense == list(range(since, STEPS))
    others = [worker.taken[step, 0] for step in range(STEPS)]
    assert max(map(np.count_nonzero, others)) < SIZES[-1]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("codec", ["all-gather+topk:0.05", "ok-topk:0.05"])
def test_what_was_kept_of_a_gradient_joins_the_dense_sum_and_all_ranks_agree(turned, codec):
    _, worker, timeline = turned(codec, overlap="forward")
    if timeline is not None:
        assert [fall.tensor for fall in timeline.header.fallbacks] == ["l1.weight"]
    given = sum(worker.given[step, 1] for step in range(STEPS))
    total = np.empty_like(given)
    WORLD.Allreduce(given, total)
    brought = sum(worker.taken[step, 1].astype(np.float64) for step in range(STEPS)) * WORLD.size
    size = np.linalg.norm(total)
    assert np.linalg.norm(brought - total) <= 1e-5 * size  # float32, a dozen steps
    for step in range(STEPS):
        for launch in range(len(SIZES)):
            every = agree.gather_text(worker.taken[step, launch].tobytes().hex(), WORLD)
            assert len(set(every)) == 1, (step, launch)


def test_inside_the_budget_nothing_changes(turned):
    _, _, timeline = turned("ring+fp16", budget=0.01)
    if timeline is not None:
        assert timeline.header.fallbacks == ()
        assert timeline.header.switches is None


def test_verified_runs_see_what_was_kept_as_part_of_the_gradient(folder):
    made = plan(graph(SIZES, 1e-4), machine(1, WORLD.size), [TOPK], max_error=BUDGET)
    options = RunOptions(steps=STEPS, worker=Turning, verify=True)
    timeline = session.run(made, WORLD, folder / "m.json", options)
    if timeline is not None:
        assert [fall.tensor for fall in timeline.header.fallbacks] == ["l1.weight"]


def trained(folder, codec, timeline=True, steps=STEPS):
    """A training loop whose gradients turn; what rank r gave and all ranks got, by step."""
    made = plan(graph(SIZES, 1e-4), machine(1, WORLD.size), [codec], max_error=BUDGET)
    source, given, taken = Turning(made, WORLD.rank), [], []
    path = folder / "e.json" if timeline else None
    names = [launch.pieces[0].tensor for launch in made.launches]
    with Exchanger(made, WORLD, timeline=path, timeout=30) as exchanger:
        for step in range(steps):
            mine = {}
            for launch, name in enumerate(names):
                mine[name] = np.empty(made.net.tensors[name].shape, np.float32)
                source.gradient(step, launch, mine[name])
                exchanger.ready(name, mine[name])
            given.append({name: values.astype(np.float64) for name, values in mine.items()})
            for name in exchanger.names[:-1]:
                exchanger.wait(name)  # the sum stays valid when it is asked for again
            taken.append({name: exchanger.wait(name).copy() for name in exchanger.names})
    WORLD.Barrier()
    return names, given, taken, timeline_file.read(path) if timeline else None


@pytest.mark.by_day(1)
@pytest.mark.parametrize("codec", [TOPK, "ok-topk:0.05"])
def test_an_exchanger_falls_back_too_and_no_gradient_is_lost(folder, codec):
    names, given, taken, timeline = trained(folder, codec)
    (fall,) = timeline.header.fallbacks
    (switch,) = timeline.header.switches
    assert (fall.tensor, fall.step, fall.methods) == ("l1.weight", TURN, (codec,))
    assert switch.step == fall.since == TURN + 3
    spans = {(span.name, span.step) for span in timeline}
    launch = fall.launches[0]
    assert all((f"{launch}/exchange", step) in spans for step in range(fall.since, STEPS))
    for name in names:
        total = np.empty(given[0][name].shape)
        WORLD.Allreduce(sum(one[name] for one in given), total)
        brought = sum(one[name].astype(np.float64) for one in taken) * WORLD.size
        if name == fall.tensor:  # what was kept of it joined the dense sum
            assert np.linalg.norm(brought - total) <= 1e-5 * np.linalg.norm(total)
            dense = [np.count_nonzero(one[name]) == total.size for one in taken]
            assert dense == [step >= fall.since for step in range(STEPS)]
        every = agree.gather_text("".join(one[name].tobytes().hex() for one in taken), WORLD)
        assert len(set(every)) == 1, name


def test_an_exchanger_says_on_one_rank_what_fell_back(folder, capsys):
    trained(folder, TOPK, timeline=False)
    said = capsys.readouterr().err
    sentence = f"commsched: tensor 'l1.weight' left its budget in step {TURN}: error "
    assert said.count(sentence) == (1 if WORLD.rank == 0 else 0)
    assert f"b1 dense from step {TURN + 3} on" in said or WORLD.rank != 0


@pytest.mark.by_day(2)
@pytest.mark.parametrize("steps", range(TURN + 1, TURN + 5))
def test_an_exchanger_may_end_in_the_middle_of_a_change(folder, steps):
    _, given, taken, _ = trained(folder, TOPK, timeline=False, steps=steps)
    assert len(given) == len(taken) == steps


@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_a_replay_has_the_operations_and_bytes_of_the_run_that_fell_back(turned, overlap):
    made, _, timeline = turned(TOPK, overlap=overlap)
    if timeline is not None:
        taken = replay(made, timeline, STEPS, "m.json")
        assert len(taken.changes) == 1
        found = simulate(made, STEPS, taken.decisions, changes=taken.changes).timeline()
        sides = [sorted((s.rank, s.step, s.name, s.nbytes) for s in t) for t in (found, timeline)]
        assert sides[0] == sides[1]
