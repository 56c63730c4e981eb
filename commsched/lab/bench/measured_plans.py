"""Measure iterations of our plans and of the baselines' plans on real ranks, cell by cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from commsched import files
from commsched.lab.bench.planner import candidates
from commsched.lab.bench.row import BenchRow
from commsched.lab.validate.cells import DENSE_SECONDS, NETS, fitting, scaled
from commsched.lab.validate.disturbance import Calm
from commsched.lab.validate.fabrics import SHARED, FabricShape
from commsched.lab.validate.main import WARM
from commsched.lab.validate.session import FabricSession, Say, fabric_session
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.problem import Problem
from commsched.planner.search.timing import iteration
from commsched.timeline import measure

FABRICS = ("100mbit", "400mbit", "1gbit", SHARED)
KINDS: Mapping[str, tuple[str, ...]] = {
    "lossless": (),
    "lossy": ("fp16", "qsgd", "topk", "fft"),  # codecs that all planners may use
}
OURS, LIBRARY = "best", "ddp-25mb"
FAR = 1.3  # times the shortest predicted iteration; slower baselines are not run
# Our iteration must be at most NEAR of the best baseline's, in SHARE of the cells.
NEAR, SHARE = 1.03, 0.9
TABLE = "table.json"
SHAPE = FabricShape(hosts=2, lanes=2)


@dataclass(frozen=True, kw_only=True)
class MeasuredPlansRequest:
    """Which cells are measured, and how."""

    folder: Path  # of machines, plans, timelines and finished cells
    fabrics: Sequence[str] = FABRICS
    nets: Sequence[str] = NETS
    kinds: Sequence[str] = tuple(KINDS)
    shape: FabricShape = SHAPE
    scale: float = 1.0  # of bytes and seconds
    steps: int = 8  # of a run, including one warm-up step
    seconds: float = 20.0  # of a calibration
    turns: int = 3  # runs of each plan: all plans of a cell, then all again
    far: float = FAR


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan that was run, the planners that return it, and its iterations."""

    planners: tuple[str, ...]
    plan: str  # its hash
    predicted: float  # s
    measured: tuple[tuple[float, ...], ...]  # s of each step of each run

    @property
    def seconds(self) -> float:
        """Return the median step of the fastest run: other load can only lengthen a run."""
        return min(float(np.median(steps)) for steps in self.measured)


class PlanCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All runs of a net on a fabric."""

    fabric: str
    net: str
    kind: str  # a key of KINDS
    runs: tuple[MeasuredRun, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Return fabric, net and kind."""
        return self.fabric, self.net, self.kind

    def of(self, planner: str) -> MeasuredRun:
        """Return the run of a planner's plan."""
        return next(run for run in self.runs if planner in run.planners)

    @property
    def turns(self) -> int:
        """Return how often all plans were run."""
        return min(len(run.measured) for run in self.runs)

    @property
    def best(self) -> MeasuredRun:
        """Return the run of the fastest baseline."""
        return min((run for run in self.runs if run.planners != (OURS,)), key=lambda r: r.seconds)

    @property
    def ratio(self) -> float:
        """Return our iteration time over the best baseline's."""
        return self.of(OURS).seconds / self.best.seconds

    @property
    def speedup(self) -> float:
        """Return the iteration time of MPI's all-reduce with DDP's buckets, over ours."""
        return self.of(LIBRARY).seconds / self.of(OURS).seconds


class _PlanCellsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["commsched-measured-plans/1"] = "commsched-measured-plans/1"
    cells: tuple[PlanCell, ...]


class Made(NamedTuple):
    """A plan, the planners that return it, and its predicted iteration, s."""

    plan: Plan
    planners: tuple[str, ...]
    predicted: float


def read(path: Path) -> list[PlanCell]:
    """Read the cells; raise CommschedError if the file is not such a table."""
    return list(files.read(path, _PlanCellsFile).cells)


def rows(wanted: MeasuredPlansRequest, say: Say) -> Iterator[BenchRow]:
    """Yield a row per cell, then rows over all cells, over each fabric and over each net.

    A cell resumes with its missing runs if its plans have not changed.
    """
    finished = []
    for cell in cells(wanted, say):
        finished.append(cell)
        yield _row(cell)
    yield _within(finished)
    for place in (0, 1):
        for name in dict.fromkeys(cell.key[place] for cell in finished):
            yield _speedup(name, [cell for cell in finished if cell.key[place] == name])


def cells(wanted: MeasuredPlansRequest, say: Say) -> Iterator[PlanCell]:
    """Measure all cells, fabric by fabric."""
    path = wanted.folder / TABLE
    files.make_folder(wanted.folder)
    known = {cell.key: cell for cell in read(path)} if path.exists() else {}
    calm, number = Calm(), 0
    count = len(wanted.fabrics) * len(wanted.nets) * len(wanted.kinds)
    for name in wanted.fabrics:
        started = fabric_session(name, wanted.shape, wanted.folder, wanted.seconds, say, calm)
        with started as session:
            for net in wanted.nets:
                machine = session.calibrated(net)
                for kind in wanted.kinds:
                    number += 1
                    say(f"[{number}/{count}] {name} {net} {kind}: planning")
                    made = plans(request(net, kind, machine, wanted.scale), wanted.far)
                    cell = known.get((name, net, kind))
                    if cell is None or not _same(cell, made):
                        cell = PlanCell(fabric=name, net=net, kind=kind, runs=_before(made))
                    for turn in range(cell.turns, wanted.turns):
                        say(f"  run {turn + 1} of {wanted.turns}")
                        cell = _after(cell, _turn(session, made, f"{net}-{kind}", wanted.steps))
                        known[cell.key] = cell
                        files.write(
                            path, msgspec.to_builtins(_PlanCellsFile(cells=tuple(known.values())))
                        )
                    yield cell


def request(net: str, kind: str, machine: Machine, scale: float) -> Request:
    """Ask for plans of a net whose ring all-reduce lasts as long as its compute.

    Fixed bucket sizes are scaled with the net. Instead of an error budget, all planners get the
    same list of lossy codecs.
    """
    fits = fitting(net, machine, DENSE_SECONDS * scale)
    return Request(net=scaled(net, fits), machine=machine, lossy=KINDS[kind], scale=fits.numel)


def plans(asked: Request, far: float = FAR) -> list[Made]:
    """Return our plan, the library's and those of competitive baselines, without duplicates."""
    problem = Problem(asked)
    made = [(OURS, _bare(make_plan(asked)))]
    for name, candidate in candidates(problem):
        made.append((name, _bare(problem.plan(candidate, name))))
    several: dict[str, tuple[Plan, list[str]]] = {}
    for name, plan in made:
        several.setdefault(plan.hash, (plan, []))[1].append(name)
    found = [Made(plan, tuple(names), iteration(plan)) for plan, names in several.values()]
    least = min(each.predicted for each in found)
    wanted = {OURS, LIBRARY}
    return [m for m in found if m.predicted <= far * least or wanted & set(m.planners)]


def _bare(plan: Plan) -> Plan:
    """Remove reasons and planner from a plan, so that equal plans of two planners are equal."""
    launches = tuple(replace(launch, reason=None) for launch in plan.launches)
    return replace(plan, launches=launches, planner="", iteration=0.0, bound=0.0)


def _same(old: PlanCell, made: list[Made]) -> bool:
    """Tell whether a finished cell has exactly these plans."""
    return {run.plan for run in old.runs} == {each.plan.hash for each in made}


def _before(made: list[Made]) -> tuple[MeasuredRun, ...]:
    """Return runs without measurements."""
    return tuple(
        MeasuredRun(
            planners=each.planners, plan=each.plan.hash, predicted=each.predicted, measured=()
        )
        for each in made
    )


def _turn(
    session: FabricSession, made: list[Made], stem: str, steps: int
) -> dict[str, tuple[float, ...]]:
    """Run all plans one after another; return the seconds of each step by the plan's hash."""
    measured = {}
    for each in made:
        session.say(f"    {', '.join(each.planners)}")
        timeline, _ = session.measured(each.plan, f"{stem}-{each.planners[0]}", steps)
        last = measure.iteration_seconds(timeline)[measure.settled(timeline, WARM)]
        measured[each.plan.hash] = tuple(last.tolist())
    return measured


def _after(cell: PlanCell, measured: Mapping[str, tuple[float, ...]]) -> PlanCell:
    """Add the measurements of one more turn to a cell."""
    return msgspec.structs.replace(
        cell,
        runs=tuple(
            msgspec.structs.replace(run, measured=(*run.measured, measured[run.plan]))
            for run in cell.runs
        ),
    )


def _row(cell: PlanCell) -> BenchRow:
    """Describe one cell."""
    ours, best = cell.of(OURS), cell.best
    others = len(cell.runs) - (ours.planners == (OURS,))
    shown = (
        f"{cell.ratio:.3f} of the best of {others} other plans ({', '.join(best.planners)}),"
        f" {cell.speedup:.2f} times as fast as {LIBRARY}; predicted"
        f" {ours.predicted / best.predicted:.3f} and"
        f" {cell.of(LIBRARY).predicted / ours.predicted:.2f}"
    )
    return BenchRow(f"{cell.fabric}, {cell.net}, {cell.kind}", ours.seconds, shown, f"<= {NEAR:g}")


def _within(found: Sequence[PlanCell]) -> BenchRow:
    """Count the cells in which our plan is near the best baseline."""
    near = sum(cell.ratio <= NEAR for cell in found)
    worst = max(found, key=lambda cell: cell.ratio)
    shown = (
        f"{near} of {len(found)} cells ({near / len(found):.0%}); at most {worst.ratio:.3f}"
        f" ({', '.join(worst.key)})"
    )
    seconds = sum(cell.of(OURS).seconds for cell in found) / len(found)
    return BenchRow(
        f"at most {NEAR:g} of the best, mean iteration", seconds, shown, f">= {SHARE:.0%}"
    )


def _speedup(name: str, found: Sequence[PlanCell]) -> BenchRow:
    """Compare the iterations on a fabric, or of a net, with the library's."""
    mean = float(np.exp(np.mean([np.log(cell.speedup) for cell in found])))
    seconds = sum(cell.of(OURS).seconds for cell in found) / len(found)
    shown = f"{mean:.2f} times as fast as {LIBRARY}, geometric mean of {len(found)} cells"
    return BenchRow(f"{name}, mean iteration", seconds, shown, "-")
