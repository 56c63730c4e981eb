"""Compare our plans with DistributedDataParallel on a testbed, cell by cell: capture to table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched import files
from commsched.lab.bench.row import BenchRow
from commsched.lab.peers.record import ALONE, Turns
from commsched.lab.testbed.bed import Testbed
from commsched.lab.validate.fabrics import ShapedFabric
from commsched.lab.validate.session import Say
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration

MODELS = ("resnet18", "gpt", "lstm", "dlrm")
SPARSE = ("dlrm",)  # their embeddings have sparse gradients
BEDS = ("2x200mbit", "2x1gbit", "4x200mbit", "4x1gbit")  # hosts of a rank each, and their ports
# What a plan may lose; PowerSGD's rank is one of the peers'.
KINDS = {"lossless": (), "lossy": ("fp16", "powersgd:1", "powersgd:4", "topk:0.01")}
# Where a plan hides exchanges, by what its name ends with: under backward, as peers do, or also
# under the next forward pass, by `attach(..., update_in_forward=optimizer)`.
OVERLAPS = {"": "backward", "-late": "forward"}
SCRIPT = Path(__file__).parent / "models.py"
PLANNING = 60.0  # s of search
LIMIT = 1800.0  # s, the longest job
BAR_EACH, BAR_MEAN, BAR_SPARSE, BAR_LOSSY = 1.0, 1.3, 5.0, 1.5


@dataclass(frozen=True, kw_only=True)
class PeersRequest:
    """Which cells are measured, and how."""

    folder: Path  # of machines, nets, plans and finished jobs
    models: Sequence[str] = MODELS
    beds: Sequence[str] = BEDS
    rounds: int = 5
    steps: int = 4  # of a turn
    seeds: int = 1
    calibration: float = 30.0  # s


class Cell(NamedTuple):
    """A model on a testbed, its jobs by seed, and what was predicted of a step, s, by plan."""

    model: str
    bed: str
    jobs: tuple[Turns, ...]
    predicted: dict[str, float]

    def seconds(self, name: str) -> float:
        """Return the median step of a contender over all turns and seeds."""
        every = [s for job in self.jobs for t in job.trained if t.name == name for s in t.seconds]
        return float(np.median(every))

    def losses(self, name: str) -> list[float]:
        """Return a contender's held-out losses, by seed."""
        return [t.loss for job in self.jobs for t in job.trained if t.name == name]

    @property
    def names(self) -> list[str]:
        """Return all contenders."""
        return [each.name for each in self.jobs[0].trained]

    def best_plan(self, kind: str) -> str:
        """Return the fastest plan of a kind; where it overlaps is the user's own choice."""
        return min((f"plan {kind}{late}" for late in OVERLAPS), key=self.seconds)

    def best_peer(self, lossy: bool) -> str:
        """Return the fastest peer; a bucket size is a peer's own choice, so the best one counts."""
        peers = [n for n in self.names if n.startswith("ddp") and n.endswith("MB") is not lossy]
        return min(peers, key=self.seconds)

    def learning(self, name: str) -> str:
        """Compare a contender's held-out loss with dense's; the spread of dense's seeds decides."""
        ours, dense = self.losses(name), self.losses(self.best_peer(lossy=False))
        said = f"held-out loss {np.mean(ours):.3f}, dense {np.mean(dense):.3f}"
        if len(dense) < 2:
            return f"{said}, of one seed"
        good = np.mean(ours) <= np.mean(dense) + max(dense) - min(dense)
        return f"{said}: {'as good' if good else 'worse'}, of {len(dense)} seeds"


def plans_of(model: str) -> list[tuple[str, str]]:
    """List the kinds of plans of a model, each with the end of its name."""
    # Hooks of DistributedDataParallel do not take sparse gradients: no lossy peer.
    kinds = ["lossless"] if model in SPARSE else list(KINDS)
    return [(kind, late) for kind in kinds for late in OVERLAPS]


def rows(wanted: PeersRequest, say: Say) -> Iterator[BenchRow]:
    """Yield rows per cell and over all cells; jobs that the folder has are not run again."""
    ratios: dict[str, list[float]] = {"lossless": [], "lossy": []}
    for cell in cells(wanted, say):
        for kind, found in ratios.items():
            row = _row(cell, kind, found)
            if row is not None:
                yield row
    for kind, bar in (("lossless", BAR_MEAN), ("lossy", BAR_LOSSY)):
        if ratios[kind]:
            mean = float(np.exp(np.mean(np.log(ratios[kind]))))
            what = f"{kind}, geometric mean of {len(ratios[kind])} cells"
            yield BenchRow(what, None, f"{mean:.2f} times the best {kind} peer", f">= {bar:g}")


def cells(wanted: PeersRequest, say: Say) -> Iterator[Cell]:
    """Measure all cells, testbed by testbed."""
    for bed in wanted.beds:
        folder = wanted.folder / bed
        files.make_folder(folder)
        with _fabric(bed) as fabric:
            machine = folder / "machine.json"
            if not machine.exists():
                say(f"{bed}: calibrating ({wanted.calibration:g} s)")
                seconds = str(wanted.calibration)
                fabric.run("calibrate", "-o", str(machine), "--seconds", seconds)
            for model in wanted.models:
                yield _cell(model, bed, folder, fabric, wanted, say)


@contextmanager
def _fabric(bed: str) -> Iterator[ShapedFabric]:
    hosts, _, rate = bed.partition("x")
    with Testbed.up(int(hosts), 1, (rate,)) as running:
        yield ShapedFabric(running, LIMIT)


def _cell(
    model: str, bed: str, folder: Path, fabric: ShapedFabric, wanted: PeersRequest, say: Say
) -> Cell:
    net, where = folder / f"{model}.net.json", f"{bed}, {model}"
    if not net.exists():
        say(f"{where}: capturing")
        fabric.run("capture", f"{SCRIPT}:{model}", "-o", str(net), "--name", model)
    predicted, words = {}, []
    for kind, late in plans_of(model):
        name = f"{kind}{late}"
        path = folder / model / f"{name}.json"
        if not path.exists():
            say(f"{where}: planning, {name}")
            files.make_folder(path.parent)
            plan_file.write(path, _plan(net, folder / "machine.json", path.parent, kind, late))
        predicted[f"plan {name}"] = iteration(plan_file.read(path))
        words += ["--plan", str(path)]
    words += ["--rounds", str(wanted.rounds), "--steps", str(wanted.steps)]
    jobs = []
    for seed in range(wanted.seeds):
        path = folder / model / f"turns-{seed}.json"
        if not path.exists():
            say(f"{where}: training in turns, seed {seed}")
            fabric.python(
                "commsched.lab.peers.turns", model, *words, "--seed", str(seed), "-o", str(path)
            )
        jobs.append(files.read(path, Turns))
    return Cell(model, bed, tuple(jobs), predicted)


def _plan(net: Path, machine: Path, plans: Path, kind: str, late: str) -> Plan:
    """Plan for scripts that wait in backward; the late plan has the same buckets and methods."""
    if late:
        plan = plan_file.read(plans / f"{kind}.json")
        plan = replace(plan, params={**plan.params, "overlap": OVERLAPS[late]})
        return replace(plan, iteration=iteration(plan))
    request = Request(
        net=net_file.read(net),
        machine=machine_file.read(machine),
        lossy=KINDS[kind],
        time_limit=PLANNING,
        params={"overlap": OVERLAPS[late]},
    )
    return make_plan(request)


def _row(cell: Cell, kind: str, ratios: list[float]) -> BenchRow | None:
    """Compare our plan of a kind with its best peer; note the ratio."""
    if (kind, "") not in plans_of(cell.model):
        return None
    name, lossy = cell.best_plan(kind), kind == "lossy"
    peer = cell.best_peer(lossy)
    ours, theirs = cell.seconds(name), cell.seconds(peer)
    ratios.append(theirs / ours)
    spread = _spread(cell, name)
    shown = (
        f"{name}, {theirs / ours:.2f} times the best peer ({peer}, {theirs * 1e3:.1f} ms); turns"
        f" {spread}; predicted {cell.predicted[name] * 1e3:.1f} ms;"
        f" computing alone {cell.seconds(ALONE) * 1e3:.1f} ms"
    )
    if lossy:
        shown += f"; {cell.learning(name)}"
        bar = BAR_LOSSY
    else:
        bar = BAR_SPARSE if cell.model in SPARSE else BAR_EACH
    return BenchRow(f"{cell.bed}, {cell.model}, {kind}", ours, shown, f">= {bar:g}")


def _spread(cell: Cell, name: str) -> str:
    every = [s for job in cell.jobs for t in job.trained if t.name == name for s in t.seconds]
    return f"{min(every) * 1e3:.1f} to {max(every) * 1e3:.1f} ms"
