"""The comparison of our plans with DistributedDataParallel on a testbed, from capture to table."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched import files
from commsched.errors import CommschedError
from commsched.lab.bench.row import BenchRow
from commsched.lab.peers.record import ALONE, DENSE, Learned, PeerTurns
from commsched.lab.testbed.bed import Testbed
from commsched.lab.validate.fabrics import ShapedFabric
from commsched.lab.validate.session import Say, begin
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.run.job import start as job

MODELS = ("resnet18", "gpt", "lstm", "dlrm")
SPARSE = ("dlrm",)  # their embeddings have sparse gradients
# Crashes of DistributedDataParallel with sparse gradients before a cell is given up: gloo's threads
# corrupt the heap, also if only PyTorch is loaded (2.13: in 4 of 7 jobs).
CRASHES = 4
BEDS = ("2x200mbit", "2x1gbit", "4x200mbit", "4x1gbit")  # hosts of a rank each, and their ports
# Lossy methods, one per plan; PowerSGD's ranks are those of the peers.
LOSSY = ("fp16", "quant:8", "powersgd:1", "powersgd:4", "topk:0.01")
# Suffix of a plan's name -> where the plan hides exchanges: under backward, as peers do, or also
# under the next forward pass, by `attach(..., update_in_forward=optimizer)`.
LATE = "-late"
LOSSLESS = "lossless"
OVERLAPS = {"": "backward", LATE: "forward"}
PYTHON = (sys.executable, "-m")
SCRIPT = Path(__file__).parent / "models.py"
PLANNING = 60.0  # s of search
LIMIT = 1800.0  # s, the longest job
BAR_EACH, BAR_MEAN, BAR_SPARSE, BAR_LOSSY = 1.0, 1.3, 5.0, 1.5


@dataclass(frozen=True, kw_only=True)
class PeersRequest:
    """The cells to measure, and the settings."""

    folder: Path  # holds machines, nets, plans and finished jobs
    models: Sequence[str] = MODELS
    beds: Sequence[str] = BEDS
    rounds: int = 5
    steps: int = 4  # of a turn
    seeds: int = 1
    learning_steps: int = 100  # after which held-out losses are compared
    learning_seeds: int = 3
    calibration: float = 30.0  # s


SETTINGS = ("rounds", "steps", "learning_steps", "calibration")  # that every result depends on


class PeerCell(NamedTuple):
    """A model on a testbed: its jobs, and the predicted s of a step by plan."""

    model: str
    bed: str
    jobs: tuple[PeerTurns, ...]  # by seed
    predicted: dict[str, float]
    learned: tuple[Learned, ...] = ()  # by seed
    lossy: str = ""  # the plan predicted as fastest of those that learn as well as dense sums

    def seconds(self, name: str) -> float:
        """Return the median step of a contender over all turns and seeds."""
        every = [s for job in self.jobs for t in job.trained if t.name == name for s in t.seconds]
        return float(np.median(every))

    @property
    def names(self) -> list[str]:
        """Return all contenders."""
        return [each.name for each in self.jobs[0].trained]

    def best_plan(self, kind: str) -> str:
        """Return the fastest plan of a kind, wherever it overlaps: that is the user's choice."""
        return min((f"plan {kind}{late}" for late in OVERLAPS), key=self.seconds)

    def best_peer(self, lossy: bool) -> str:
        """Return the fastest peer of any bucket size, because a peer's user may choose the size.

        Only lossy peers that learn as well as dense sums count; "": there is none.
        """
        peers = [n for n in self.names if n.startswith("ddp") and n.endswith("MB") is not lossy]
        good = [n for n in peers if not lossy or as_good(self.learned, n)]
        return min(good, key=self.seconds, default="")


def held_out(learned: Sequence[Learned], name: str) -> list[float]:
    """Return a contender's held-out losses, by seed; inf: it diverged."""
    return [inf if (loss := each.losses[name]) is None else loss for each in learned]


def as_good(learned: Sequence[Learned], name: str) -> bool:
    """Tell whether a contender's mean loss is at most the mean of dense sums plus their spread.

    The spread is the largest loss minus the least, over the seeds of dense sums.
    """
    ours, dense = held_out(learned, name), held_out(learned, DENSE)
    return float(np.mean(ours)) <= float(np.mean(dense)) + max(dense) - min(dense)


def rows(wanted: PeersRequest, say: Say) -> Iterator[BenchRow]:
    """Yield rows per cell and over all cells; jobs with results in the folder are not run again."""
    ratios: dict[str, list[float]] = {"lossless": [], "lossy": []}
    for cell in cells(wanted, say):
        for kind, found in ratios.items():
            row = _row(cell, kind, found)
            if row is not None:
                yield row
        if cell.learned:
            yield _learning(cell)
    for kind, bar in (("lossless", BAR_MEAN), ("lossy", BAR_LOSSY)):
        if ratios[kind]:
            mean = float(np.exp(np.mean(np.log(ratios[kind]))))
            what = f"{kind}, geometric mean of {len(ratios[kind])} cells"
            yield BenchRow(
                what, None, f"{mean:.2f} times the best peer that learns as well", f">= {bar:g}"
            )


def check_settings(wanted: PeersRequest) -> None:
    """Raise an error if the folder was begun with other settings, such as --quick."""
    begin(wanted.folder, {name: getattr(wanted, name) for name in SETTINGS})


def cells(wanted: PeersRequest, say: Say) -> Iterator[PeerCell]:
    """Measure all cells, testbed by testbed."""
    check_settings(wanted)
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
    with Testbed.up(_hosts(bed), 1, (bed.partition("x")[2],)) as running:
        yield ShapedFabric(running, LIMIT)


def _cell(
    model: str, bed: str, folder: Path, fabric: ShapedFabric, wanted: PeersRequest, say: Say
) -> PeerCell:
    net, where = folder / f"{model}.net.json", f"{bed}, {model}"
    if not net.exists():
        say(f"{where}: capturing")
        fabric.run("capture", f"{SCRIPT}:{model}", "-o", str(net), "--name", model)
    plans = folder / model
    files.make_folder(plans)

    def planned(name: str, late: str = "") -> Path:
        path = plans / f"{name.replace(':', '-')}{late}.json"
        if not path.exists():
            say(f"{where}: planning, {name}{late}")
            codecs = () if name == LOSSLESS else (name,)
            plan = _plan(net, folder / "machine.json", codecs, OVERLAPS[late])
            plan_file.write(path, plan)
        return path

    # DistributedDataParallel's hooks reject sparse gradients, so there is no lossy peer.
    lossy = {} if model in SPARSE else {codec: planned(codec) for codec in LOSSY}
    learned = _learned(model, bed, list(lossy.values()), wanted, say) if lossy else ()
    good = [codec for codec, path in lossy.items() if as_good(learned, f"plan {path.stem}")]
    fastest = sorted(good, key=lambda codec: iteration(plan_file.read(lossy[codec])))[:1]
    paths = [planned(name, late) for late in OVERLAPS for name in (LOSSLESS, *fastest)]
    predicted = {f"plan {path.stem}": iteration(plan_file.read(path)) for path in paths}
    words = [model, *_plan_words(paths)]
    words += ["--rounds", str(wanted.rounds), "--steps", str(wanted.steps)]
    jobs = []
    for seed in range(wanted.seeds):
        path = plans / f"turns-{seed}.json"
        if not path.exists():
            say(f"{where}: training in turns, seed {seed}")
            run = partial(fabric.python, "commsched.lab.peers.turns", *words, *_seeded(seed, path))
            again_after_crashes(run, CRASHES if model in SPARSE else 0, say)
        jobs.append(files.read(path, PeerTurns))
    chosen = lossy[fastest[0]].stem if fastest else ""
    return PeerCell(model, bed, tuple(jobs), predicted, learned, chosen)


def again_after_crashes(run: Callable[[], object], crashes: int, say: Say) -> None:
    """Run a job; after a failure run it again, at most `crashes` times."""
    for left in reversed(range(crashes + 1)):
        try:
            run()
            return
        except CommschedError as error:
            if not left:
                raise
            reason, *_ = str(error).splitlines()
            say(f"{reason}; once more, because gloo's sums of sparse gradients crash at times")


def _learned(
    model: str, bed: str, plans: Sequence[Path], wanted: PeersRequest, say: Say
) -> tuple[Learned, ...]:
    """Train in shared memory, seed by seed; plans for any network compute the same sums.

    The bucket boundaries of a plan hardly change what a lossy method learns, so the plans of the
    first testbed with as many ranks stand for the plans of all.
    """
    ranks, words = _hosts(bed), [*PYTHON, "commsched.lab.peers.learning", model]
    words += _plan_words(plans)
    words += ["--steps", str(wanted.learning_steps)]
    found = []
    for seed in range(wanted.learning_seeds):
        path = wanted.folder / f"{model}-{ranks}-learned-{seed}.json"
        if not path.exists():
            say(f"{bed}, {model}: learning, seed {seed}")
            job.run(ranks, [*words, *_seeded(seed, path)], LIMIT, quiet=True)
        found.append(files.read(path, Learned))
    return tuple(found)


def _hosts(bed: str) -> int:
    return int(bed.partition("x")[0])


def _plan_words(plans: Sequence[Path]) -> list[str]:
    return [word for path in plans for word in ("--plan", str(path))]


def _seeded(seed: int, path: Path) -> tuple[str, ...]:
    return "--seed", str(seed), "-o", str(path)


def _plan(net: Path, machine: Path, lossy: tuple[str, ...], overlap: str) -> Plan:
    """Make plans for scripts that hide exchanges under backward only, or also under forward."""
    request = Request(
        net=net_file.read(net),
        machine=machine_file.read(machine),
        lossy=lossy,
        time_limit=PLANNING,
        params={"overlap": overlap},
    )
    return make_plan(request)


def _row(cell: PeerCell, kind: str, ratios: list[float]) -> BenchRow | None:
    """Compare our plan of a kind with its best peer; note the ratio."""
    what, lossy = f"{cell.bed}, {cell.model}, {kind}", kind == "lossy"
    bar = BAR_LOSSY if lossy else BAR_SPARSE if cell.model in SPARSE else BAR_EACH
    if lossy and not cell.learned:
        return None
    if lossy and not cell.lossy:
        return BenchRow(what, None, "no plan learns as well as dense sums", f">= {bar:g}")
    name = cell.best_plan(cell.lossy if lossy else LOSSLESS)
    peers = filter(None, {cell.best_peer(lossy), cell.best_peer(lossy=False)})
    peer = min(peers, key=cell.seconds)  # only peers that learn as well
    ours, theirs = cell.seconds(name), cell.seconds(peer)
    ratios.append(theirs / ours)
    shown = (
        f"{name}, {theirs / ours:.2f} times the best peer ({peer}, {theirs * 1e3:.1f} ms); turns"
        f" {_spread(cell, name)}; predicted {cell.predicted[name] * 1e3:.1f} ms;"
        f" computing alone {cell.seconds(ALONE) * 1e3:.1f} ms"
    )
    return BenchRow(what, ours, shown, f">= {bar:g}")


def _learning(cell: PeerCell) -> BenchRow:
    """Return a row with each contender's held-out loss, marking those worse than dense sums."""
    found = []
    for name in sorted(cell.learned[0].losses, key=lambda name: name != DENSE):
        losses = held_out(cell.learned, name)
        spread = f" ({min(losses):.3f} to {max(losses):.3f})" if name == DENSE else ""
        worse = "" if as_good(cell.learned, name) else " (worse)"
        found.append(f"{name} {np.mean(losses):.3f}{spread}{worse}")
    what = f"{cell.bed}, {cell.model}, held-out loss"
    after = f"after {cell.learned[0].steps} steps, {len(cell.learned)} seeds"
    return BenchRow(what, None, f"{', '.join(found)}; {after}", "as dense, within its seeds")


def _spread(cell: PeerCell, name: str) -> str:
    every = [s for job in cell.jobs for t in job.trained if t.name == name for s in t.seconds]
    return f"{min(every) * 1e3:.1f} to {max(every) * 1e3:.1f} ms"
