"""ZeRO on ranks: every sum and gather is checked, and a run has the operations of a simulation."""

import pytest

from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.run import session
from commsched.run.engine.engine import Engine
from commsched.run.session import RunOptions
from commsched.simulate.engine import simulate
from commsched.timeline import check
from commsched.train.assignment import Assignment, Settings
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.training import Training, TrainOptions
from commsched.train.workers.sharded import ShardedWorker
from tests.support.overlaps import overlaps
from tests.support.ranks import WORLD, together
from tests.support.small_plans import graph, machine

SHAPE = (WORLD.size // 2, 2) if WORLD.size % 2 == 0 else (1, WORLD.size)
SIZES = [300, 45, 200, 70, 5]
groups = pytest.mark.groups
CASES = [  # in groups of one or two sizes each; by night in all
    pytest.param("zero1", {"shard": "node"}, marks=groups(1, 4)),
    pytest.param("zero2", {"buffers": 1}, marks=groups(3)),
    pytest.param("zero3", {"prefetch": 0, "gather": "quant:8"}, marks=groups(4)),
    pytest.param("zero3", {"prefetch": 2}, marks=groups(1, 3)),
]


class Seen(Engine):
    """An engine that a test can look into."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        Seen.last = self


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("name", "params"), CASES)
def test_shards_are_right_and_the_timeline_is_the_simulated_one(name, params, folder, monkeypatch):
    net, on = graph(SIZES, seconds=2e-4), machine(*SHAPE, jitter=0.2)
    plan = make_plan(Request(net=net, machine=on, strategy=name, params=params, bucket=1.0))
    monkeypatch.setattr("commsched.run.session.Engine", Seen)
    measured = session.run(plan, WORLD, folder / "m.json", RunOptions(steps=4, verify=True))
    problems, most = [], STRATEGIES[name].memory(plan).buckets
    borrowed = sum(array.nbytes for array in Seen.last.buckets.spare._free)
    if borrowed > most:
        problems.append(f"borrowed {borrowed} B, counted are {most} B")
    if measured is not None:
        predicted = simulate(plan, 4).timeline()
        rows = [
            {(s.rank, s.step, s.stream, s.name): s.nbytes for s in timeline}
            for timeline in (predicted, measured)
        ]
        problems += [f"differ: {[*rows[0].items() ^ rows[1].items()][:6]}"] * (rows[0] != rows[1])
        if check.problem(measured) or overlaps(measured):
            problems.append("the measured timeline is not legal")
        found = measured.header.verified.largest_relative_error
        errors = {n: e for n, e in found.items() if "gather" in n and n.endswith("+dense")}
        if errors and set(errors.values()) != {0.0}:
            problems.append(f"gathers differ from what owners have: {errors}")
    together(problems)


class Weighed(ShardedWorker):
    """A worker that notes the most bytes of parameters and of gradients that live at one time."""

    most = (0, 0)

    def perform(self, step, op):
        self.weigh()
        super().perform(step, op)
        self.weigh()

    def weigh(self):
        # Copies: the threads of the engine add to both and take from them meanwhile.
        living = (list(self.used.values()), list(self._gradients.values()))
        found = (sum(array.nbytes for array in arrays) for arrays in living)
        self.most = tuple(map(max, zip(self.most, found, strict=True)))


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "level",
    [
        pytest.param(1, marks=groups(1, 3)),
        pytest.param(2, marks=groups(4)),
        pytest.param(3, marks=groups(3)),
    ],
)
def test_what_a_rank_holds_is_what_is_counted(level):
    """Shards of parameters and state, and whole units only as long as the window lasts."""
    net = NETS["mlp:32:3"]
    request = Request(
        net=profile_net(net, 4),
        machine=machine(1, WORLD.size),
        strategy=f"zero{level}",
        params={"optimizer": "adam"},
        bucket=1.0,
    )
    plan = make_plan(request)
    settings = Settings(optimizer="adam", rate=1e-3, batch=12)
    assigned = Assignment(net, DATA[net.data](0), plan, settings, WORLD.rank)
    worker = Weighed(assigned)
    Training(worker, plan, WORLD, None, None, TrainOptions(steps=3)).run()
    counted = STRATEGIES[plan.strategy].memory(plan)
    most = 4 * max(plan.spec(launch).numel for launch in plan.launches)
    state = sum(array.nbytes for shard in worker._shards.values() for array in shard.values())
    problems = []
    allowed = counted.optimizer + (counted.parameters if level == 3 else 0)
    if state > allowed:
        problems.append(f"keeps {state} B of state, counted are {allowed} B")
    whole = 4 * plan.net.numel
    units = [(whole, whole), (whole, 2 * most), (2 * most, 2 * most)][level - 1]
    if any(a > b for a, b in zip(worker.most, units, strict=True)):
        problems.append(f"holds {worker.most} B, expected at most {units} B")
    if worker.most[0] < most:
        problems.append("no unit was ever whole")
    together(problems)
