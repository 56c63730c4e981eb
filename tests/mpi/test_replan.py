"""Planning anew on real ranks: all switch in one step, and no gradient and no residual is lost."""

from dataclasses import replace

import numpy as np
import pytest

from commsched import Exchanger
from commsched.run import session
from commsched.run.engine.worker import Emulated
from commsched.run.job import agree
from commsched.run.session import RunOptions
from tests.support.ranks import WORLD
from tests.support.small_plans import graph, machine, plan

pytestmark = pytest.mark.groups(1, 3)
STEPS = 14
SIZES = [4000, 700, 5000, 300]
SLOWER = 1e3  # times the planned machine's links are slower than anything real


class Noting(Emulated):
    """Draws a new gradient of every tensor in every step, and notes what goes in and comes out."""

    def __init__(self, made, rank):
        super().__init__(made, rank)
        self.made, self.given, self.taken = made, [], []

    def gradient(self, step, launch, out):
        drawn = [
            np.random.default_rng([step, self.number(piece.tensor), WORLD.rank])
            .standard_normal(self.made.net.tensors[piece.tensor].numel)
            .astype(np.float32)[piece.start : piece.stop]
            for piece in self.made.launches[launch].pieces
        ]
        out[:] = np.concatenate(drawn)
        self.given.append(self.cut(launch, out))

    def result(self, step, launch, values):
        self.taken.append(self.cut(launch, values))

    def follow(self, made, kept):
        super().follow(made, kept)
        self.made = made

    def number(self, tensor):
        return list(self.made.net.tensors).index(tensor)

    def cut(self, launch, values):
        """A step's values by tensor."""
        pieces = self.made.launches[launch].pieces
        ends = np.cumsum([p.stop - p.start for p in pieces])[:-1]
        parts = np.split(values.astype(np.float64), ends)
        return {p.tensor: part for p, part in zip(pieces, parts, strict=True)}


def slow_machine():
    """What the plan believes: then every exchange is far too fast."""
    made = machine(1, WORLD.size)
    link = replace(made.inside, per_byte=made.inside.per_byte * SLOWER, latency=1.0)
    return replace(made, inside=link)


def total(notes, tensor):
    """The sum of a tensor's values over all steps."""
    return np.sum([one[tensor] for one in notes if tensor in one], axis=0)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_nothing_is_lost_when_the_buckets_change_between_two_steps(folder, overlap):
    on = slow_machine()
    params = {"overlap": overlap}
    first = plan(graph(SIZES, 1e-4), on, ["all-gather+topk:0.05"], params=params)
    workers, asked = [], []

    def worker(made, rank):
        workers.append(Noting(made, rank))
        return workers[0]

    def replan(old, fitted, stay):
        asked.append(fitted)
        return plan(old.net, fitted, ["ring+dense"], bucket=1e9, params=params)

    options = RunOptions(steps=STEPS, worker=worker, replan=replan)
    timeline = session.run(first, WORLD, folder / "m.json", options)
    if WORLD.size == 1:
        return  # nothing is exchanged, so nothing drifts
    if timeline is not None:
        switch = timeline.header.switches[0]
        assert 3 <= switch.step < STEPS - 1
        assert switch.ratio < 1.0
        assert "inside the node" in switch.why
        assert asked[0].inside.per_byte < on.inside.per_byte
    for layer in range(len(SIZES)):
        tensor = f"l{layer}.weight"
        given = total(workers[0].given, tensor)
        whole = np.empty_like(given)
        WORLD.Allreduce(given, whole)
        brought = total(workers[0].taken, tensor) * WORLD.size
        assert np.linalg.norm(brought - whole) <= 1e-5 * np.linalg.norm(whole)  # float32
    steps = agree.gather_numbers(len(workers[0].taken), WORLD)
    assert min(steps) == max(steps)


def test_where_nothing_drifts_the_plan_stays(folder, monkeypatch):
    monkeypatch.setattr("commsched.run.adapt.drift.interval", lambda machine: (0.0, float("inf")))
    made = plan(graph(SIZES, 1e-4), machine(1, WORLD.size), ["ring+dense"])

    def replan(*_):
        raise AssertionError("nothing drifted")

    timeline = session.run(made, WORLD, folder / "m.json", RunOptions(steps=STEPS, replan=replan))
    if timeline is not None:
        assert timeline.header.switches == ()


DENSITY = 0.02


class Thin(Noting):
    """Draws gradients with few values per rank, at places of its own."""

    def gradient(self, step, launch, out):
        super().gradient(step, launch, out)
        self.given.pop()
        rng = np.random.default_rng([7, step, launch, WORLD.rank])
        out[rng.random(len(out)) >= DENSITY] = 0
        self.given.append(self.cut(launch, out))


def test_densities_that_are_not_those_of_the_plan_are_planned_for(folder, monkeypatch):
    monkeypatch.setattr("commsched.run.adapt.drift.interval", lambda machine: (0.0, float("inf")))
    first = plan(graph([40_000, 30_000], 1e-4), machine(1, WORLD.size), ["ring+dense"])
    asked, workers = [], []

    def worker(made, rank):
        workers.append(Thin(made, rank))
        return workers[0]

    def replan(old, fitted, stay):
        asked.append(old.net)
        return plan(old.net, fitted, ["all-gather+coo"])

    options = RunOptions(steps=STEPS, worker=worker, replan=replan)
    timeline = session.run(first, WORLD, folder / "m.json", options)
    if timeline is not None and WORLD.size > 1:
        (switch,) = timeline.header.switches  # once: then the densities are those of the plan
        assert "has density 0.0" in switch.why
        law = asked[0].tensors["l0.weight"].sparsity
        summed = 1 - (1 - DENSITY) ** WORLD.size
        assert float(law.after(np.array(1))) == pytest.approx(DENSITY, rel=0.1)
        assert float(law.after(np.array(WORLD.size))) == pytest.approx(summed, rel=0.1)
    given = total(workers[0].given, "l0.weight")
    whole = np.empty_like(given)
    WORLD.Allreduce(given, whole)
    brought = total(workers[0].taken, "l0.weight") * WORLD.size
    assert np.linalg.norm(brought - whole) <= 1e-5 * np.linalg.norm(whole)  # float32


def test_an_exchanger_plans_for_the_rows_that_it_is_given(monkeypatch):
    monkeypatch.setattr("commsched.run.adapt.drift.interval", lambda machine: (0.0, float("inf")))
    net = graph([8_000], 1e-4)
    first = plan(net, machine(1, WORLD.size), ["ring+dense"])
    asked = []

    def replan(old, fitted, stay):
        asked.append(old.net)
        return plan(old.net, fitted, ["all-gather+coo"])

    with Exchanger(first, WORLD, replan=replan) as exchanger:
        for step in range(STEPS):
            rows = np.arange(3) * 100 + step + WORLD.rank
            exchanger.ready("l0.weight", (rows, np.ones(3, np.float32)))
            number, summed = exchanger.wait("l0.weight")
            assert set(rows) <= set(number.tolist())
            assert summed.sum() == pytest.approx(3.0, rel=1e-6)  # the mean of equal sums
        followed = exchanger.plan
    if WORLD.size > 1:
        assert {launch.method for launch in followed.launches} == {"all-gather+coo"}
        assert followed.net.tensors["l0.weight"].sparsity.density < 0.1
        assert len(asked) == (WORLD.rank == 0)
