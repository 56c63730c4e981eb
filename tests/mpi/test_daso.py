"""Strategies that move parameters: what ranks end with is what one process computes."""

from copy import deepcopy

import numpy as np
import pytest

from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import find_method
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.run import session
from commsched.run.engine.worker import Emulated, draw_parameter
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.session import RunOptions
from commsched.simulate.engine import simulate
from commsched.timeline import check
from commsched.timeline import file as timeline_file
from tests.support.gradients import bits
from tests.support.overlaps import overlaps
from tests.support.ranks import WORLD, together
from tests.support.small_plans import graph, machine, strategy_plan

pytestmark = pytest.mark.groups(4)
SHAPE = (WORLD.size // 2, 2) if WORLD.size % 2 == 0 else (WORLD.size, 1)
STEPS = 14
SIZES = [30, 45, 20]
DASO = {"batches": 6, "epochs": 3, "warmup": 1, "cooldown": 1, "gs": 2, "wait": 1}
CASES = [
    ("daso", DASO),
    ("daso", {**DASO, "gs": 0, "wait": 0, "blocking": "dense"}),
    ("daso", {**DASO, "gs": 3, "wait": 3, "epochs": 9}),
    ("daso", {**DASO, "gs": 1, "wait": 0, "epochs": 9}),
    ("daso", {**DASO, "gs": 4, "wait": 1, "epochs": 9, "local_skip": 4}),
    ("shadow", {"every": 3, "lag": 2}),
    ("shadow", {"every": 2, "lag": 2, "rule": "bmuf", "rate": 0.75, "momentum": 0.5}),
    ("shadow", {"every": 4, "lag": 0, "rule": "easgd", "alpha": 0.25, "rate": 0.5}),
]


class Kept(Emulated):
    """An emulated rank that others can look into."""

    def __init__(self, plan, rank):
        super().__init__(plan, rank)
        Kept.last = self


def made(name, params, monkeypatch, **changes):
    """A plan whose chunks are smaller than half a tensor, by methods whose bits are defined."""
    monkeypatch.setattr("commsched.planner.averages.CHUNK", 17)
    monkeypatch.setattr(
        "commsched.planner.averages.all_reduces",
        lambda request, group, codec: [find_method(f"ring+{codec}")],
    )
    return strategy_plan(
        graph(SIZES, seconds=2e-4), machine(*SHAPE, jitter=0.2), name, **params, **changes
    )


class Reference:
    """All ranks' parameters in one process; the steps of a program in its order."""

    def __init__(self, plan):
        self.plan = plan
        tensors = plan.net.tensors.values()
        self.values = [
            {t.name: draw_parameter(plan, rank, t) for t in tensors} for rank in range(WORLD.size)
        ]
        self.sums = {}
        self.kept = {}

    def cut(self, rank, launch):
        parts = [self.values[rank][name][a:b] for name, a, b in self.plan.launches[launch].pieces]
        return np.concatenate(parts)

    def put(self, rank, launch, values):
        at = 0
        for name, a, b in self.plan.launches[launch].pieces:
            self.values[rank][name][a:b] = values[at : at + b - a]
            at += b - a

    def step(self, step):
        """What ranks copy before they merge, they copy as it was; see the plan's `wait`."""
        program = STRATEGIES[self.plan.strategy].lower(self.plan, step, {})
        ops = {}
        for role in program.roles:
            for place, op in enumerate(role.ops):
                if op.launch >= 0 and self.plan.launches[op.launch].payload == "parameter":
                    ops.setdefault(op.name, (place, op, []))[2].extend(role.ranks)
        merges = [v for v in ops.values() if v[1].kind is Kind.MERGE]
        copies = [v for v in ops.values() if v[1].kind is Kind.EXCHANGE and v[1].root is None]
        spreads = [
            v[1] for v in ops.values() if v[1].kind is Kind.EXCHANGE and v[1].root is not None
        ]
        at_once = bool(merges) and not merges[0][1].waited
        for work in ("copy", "merge") if at_once else ("merge", "copy"):
            if work == "copy":
                for _, op, _ in copies:
                    self.copy(step, op)
            else:
                for _, op, ranks in merges:
                    self.merge(step, op, ranks)
                for op in spreads:
                    self.spread(op)

    def copy(self, step, op):
        launch = self.plan.launches[op.launch]
        for ranks in (
            self.plan.teams(launch) if op.team is None else [self.plan.teams(launch)[op.team]]
        ):
            states = fresh_states([self.cut(rank, op.launch) for rank in ranks])
            group = self.plan.team(ranks)
            run_method(find_method(launch.method), self.plan.spec(launch), group, states)
            for rank, state in zip(ranks, states, strict=True):
                self.sums[op.launch, int(rank)] = state["result"].copy()

    def merge(self, step, op, ranks):
        for rank in ranks:
            local = self.cut(rank, op.launch)
            state = self.kept.setdefault((op.launch, rank), {})
            total = self.sums.pop((op.launch, rank))
            STRATEGIES[self.plan.strategy].merge(self.plan, op, local, total, state)
            self.put(rank, op.launch, local)

    def spread(self, op):
        for ranks in self.plan.teams(self.plan.launches[op.launch]):
            values = self.cut(ranks[op.root], op.launch)
            for rank in ranks:
                self.put(rank, op.launch, values)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[0])
def ran(request, shared):
    """Name, parameters, plan, timeline on rank 0, and what this rank's tensors are in the end."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        plan = made(*request.param, monkeypatch)
    options = RunOptions(steps=STEPS, worker=Kept)
    measured = session.run(plan, WORLD, shared / "m.json", options)
    return *request.param, plan, measured, Kept.last._parameters


@pytest.mark.by_day(2)
def test_a_run_gives_the_bits_of_one_process(ran):
    _, _, plan, _, parameters = ran
    reference = Reference(plan)
    for step in range(STEPS):
        reference.step(step)
    problems = []
    for tensor, want in reference.values[WORLD.rank].items():
        got = parameters[tensor]
        if not np.array_equal(bits(got), bits(want)):
            problems.append(f"{tensor}: other bits than in one process")
    together(problems)


@pytest.mark.by_day(2)
def test_a_simulation_has_the_same_operations_and_bytes(ran):
    name, params, plan, measured, _ = ran
    problems = []
    if measured is not None:
        predicted = simulate(plan, STEPS, measured.decisions).timeline()
        rows = [
            {(s.rank, s.step, s.stream, s.name): s.nbytes for s in timeline}
            for timeline in (predicted, measured)
        ]
        if rows[0] != rows[1]:
            problems.append(f"differ: {sorted(set(rows[0].items()) ^ set(rows[1].items()))[:6]}")
        if check.problem(measured) or overlaps(measured):
            problems.append("the measured timeline is not legal")
        decided = {k for k in measured.decisions if k.endswith("/epoch/decide")}
        if name == "daso" and (len(decided) == 0) != (params["gs"] == 0):
            problems.append(f"decided {decided}")
    together(problems)


class Linear:
    """Plain SGD on a linear model: the pieces of one tensor are its parameters."""

    rate = 0.05

    def __init__(self, plan, rank):
        self.plan, self.rank = plan, rank
        numel = plan.net.numel
        self.start = np.linspace(-1, 1, numel).astype(np.float32)
        self.parameter = self.start.copy()
        self.computed = (-1, self.start)
        Linear.last = self

    def seconds(self, step, nominal):
        return nominal

    def batch(self, step, rank):
        rng = np.random.default_rng([step, rank])
        inputs = rng.standard_normal((8, len(self.start))).astype(np.float32)
        return inputs, inputs @ np.cos(np.arange(len(self.start), dtype=np.float32))

    def slope(self, step, rank, parameter):
        inputs, wanted = self.batch(step, rank)
        return inputs.T @ (inputs @ parameter - wanted) / np.float32(len(wanted))

    def runs(self, launch):
        return [slice(a, b) for _, a, b in self.plan.launches[launch].pieces]

    def gradient(self, step, launch, out):
        if self.computed[0] != step:  # before anything of this step is applied
            self.computed = step, self.slope(step, self.rank, self.parameter)
        out[:] = np.concatenate([self.computed[1][run] for run in self.runs(launch)])

    def parameters(self, step, launch, out):
        out[:] = np.concatenate([self.parameter[run] for run in self.runs(launch)])

    def _put(self, launch, values):
        at = 0
        for run in self.runs(launch):
            size = run.stop - run.start
            yield run, values[at : at + size]
            at += size

    def result(self, step, launch, values):
        for run, part in self._put(launch, values):
            self.parameter[run] -= np.float32(self.rate) * part

    def replace(self, step, launch, values):
        for run, part in self._put(launch, values):
            self.parameter[run] = part

    def vote(self, step):
        inputs, wanted = self.batch(step, self.rank)
        return float(np.square(inputs @ self.parameter - wanted).mean())

    def follow(self, plan, kept):
        raise AssertionError("one plan")


def test_without_skips_plain_sgd_is_synchronous_averaging(folder):
    params = {
        "gs": 0,
        "wait": 0,
        "blocking": "dense",
        "warmup": 1,
        "batches": 4,
        "optimizer": "sgd",
    }
    net = graph([23], seconds=2e-4)
    plan = strategy_plan(net, machine(*SHAPE), "daso", **params)
    session.run(plan, WORLD, folder / "m.json", RunOptions(steps=12, worker=Linear))
    worker = Linear.last
    want = worker.start.copy()
    for step in range(12):
        slopes = [worker.slope(step, rank, want) for rank in range(WORLD.size)]
        want = want - np.float32(worker.rate) * np.mean(slopes, axis=0)
    off = float(np.abs(worker.parameter - want).max())
    together([f"off by {off}"] * (off > 1e-6 * max(1.0, float(np.abs(want).max()))))


def test_ranks_of_a_node_agree_after_every_merge_and_all_at_an_epochs_end(folder, monkeypatch):
    plan = made("daso", {**DASO, "epochs": 9, "warmup": 0}, monkeypatch)
    session.run(plan, WORLD, folder / "m.json", RunOptions(steps=6, worker=Kept))
    mine = b"".join(Kept.last._parameters[t].tobytes() for t in plan.net.tensors)
    everyone = agree.gather_text(mine.hex(), WORLD)
    together(["ranks differ after the last batch of an epoch"] * (len(set(everyone)) > 1))


def test_verify_and_replan_are_for_sync(folder, monkeypatch):
    plan = made("shadow", {"every": 3, "lag": 2}, monkeypatch)
    with pytest.raises(Exception, match=r"--verify is for .*, not for 'shadow'"):
        session.run(plan, WORLD, folder / "m.json", RunOptions(steps=2, verify=True))


@pytest.mark.groups(2)
def test_a_timeline_that_goes_on_from_a_state_has_the_decisions_before_it(tmp_path):
    """A replay needs them: how often ranks average depends on the losses of all epochs."""
    folder = agree.gather_text(str(tmp_path), WORLD)[0]
    params = {"batches": 2, "warmup": 0, "cooldown": 0}
    plan = strategy_plan(graph(SIZES), machine(WORLD.size, 1), "daso", **params)
    sizes = {name: tensor.numel for name, tensor in plan.net.tensors.items()}

    def run(name, steps, kept=None):
        """Return the state before step 4."""
        own = {name: np.zeros(numel, np.float32) for name, numel in sizes.items()}
        with Exchanger(plan, WORLD, parameters=own, timeline=f"{folder}/{name}") as exchanger:
            if kept is not None:
                exchanger.restore(kept)
            for step in steps:
                kept = deepcopy(exchanger.kept()) if step == 4 else kept
                for tensor, numel in sizes.items():
                    shape = plan.net.tensors[tensor].shape
                    exchanger.ready(tensor, np.ones(numel, np.float32).reshape(shape))
                for tensor in sizes:
                    exchanger.wait(tensor)
                exchanger.updated(1.0 / (1 + step))
        return kept

    run("rest", range(4, 8), run("whole", range(8)))
    if WORLD.rank == 0:
        whole, rest = (timeline_file.read(tmp_path / name) for name in ("whole", "rest"))
        assert len(whole.decisions) == 4
        assert rest.decisions == whole.decisions
        assert (whole.run.first_step, rest.run.first_step) == (None, 4)
