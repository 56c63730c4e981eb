"""`commsched bench convergence`: accuracy, bytes and step time of strategies and codecs."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.cli.bench_options import JSON, quick
from commsched.cli.options import Flag, ListOption, Option
from commsched.cli.signals import end_well
from commsched.errors import CommschedError
from commsched.quantities import SECONDS, SPREAD
from commsched.terminal import say
from commsched.text_table import table
from commsched.units import nbytes

if TYPE_CHECKING:
    from commsched.lab.convergence.table import CaseResult, ConvergenceTable, StepTimes, Tried
    from commsched.lab.convergence.trainings import ConvergenceRequest
    from commsched.lab.validate.fabrics import ValidationFabric

FOLDER = Path("convergence")
CALIBRATION = 20.0  # s
# The cases of --quick; a table trains those that it has.
QUICK_CASES = ("dense", "fft:0.15", "topk:0.03125", "daso")
MACHINE, LANES = "machine.json", 2  # of a host


OPTIONS = (
    ListOption("--table", None, "see docs/explanation/convergence.md; default: all"),
    ListOption("--case", None, "case of a table; default: all"),
    Option("--folder", "DIR", "folder of the tables", Path, FOLDER),
    Option("--time-limit", "TIME", "stop after this time; --timed ends the run under way", SECONDS),
    Flag(
        "--tune",
        "choose the rate of each case, among five or more, on validation data",
    ),
    Option("-j --jobs", "N", "cases that are trained side by side", int, 1),
    Flag("--timed", "measure step times of the trained cases on a testbed"),
    Flag("--cosines", "cases with local losses: compare their gradients with the whole loss's"),
    Flag("--again", "repeat the first training of each recorded case, and compare"),
    Flag("--show", "print the existing tables and do nothing else"),
    Option("--hosts", "N", "hosts of the testbed", int, 2),
    Option("--rate", None, "rate of the testbed's ports", default="200mbit"),
    Option("--jitter", None, "jitter of compute on the testbed", SPREAD, 0.1),
    quick("four cases, one fold, two seeds"),
    JSON,
)


def convergence(args: argparse.Namespace) -> None:
    """Train or time the missing cases, and print the tables.

    Status 1 if a case fails, or if --again differs.
    """
    from commsched.lab.convergence.figure import draw
    from commsched.lab.convergence.repeated_training import train_again
    from commsched.lab.convergence.tables import TABLES
    from commsched.lab.convergence.trainings import kept, train
    from commsched.study import workers

    end_well()
    for flag in ("again", "cosines"):
        if args.time_limit is not None and vars(args)[flag]:
            raise CommschedError(f"--time-limit is for trainings and --timed, not for --{flag}")
    for name in args.table:
        if name not in TABLES:
            raise CommschedError(f"--table must be one of {', '.join(TABLES)}, got {name!r}")
    names = args.table or (["digits"] if args.quick else list(TABLES))
    requests = [_wanted(args, name) for name in names]
    different, failed = 0, list[str]()

    def fail(sentence: str) -> None:
        failed.append(sentence)
        say(sentence)

    if args.timed:
        _time(args, requests)
    elif args.cosines:
        from commsched.lab.convergence.cosines import compare

        for wanted in requests:
            compare(wanted, args.folder, say)
    elif not args.show:
        with workers.processes(args.jobs) if args.jobs != 1 else nullcontext() as beside:
            for wanted in requests:
                if args.again:
                    different += train_again(wanted, args.folder, say, beside)
                else:
                    train(wanted, args.folder, say, beside, fail)
    found = {wanted.table: kept(wanted, args.folder) for wanted in requests}
    if not args.show:
        draw(found, args.folder / "convergence.png")
    if args.json:
        print(json.dumps({name: _data(each) for name, each in found.items()}, indent=1))
    else:
        for each in found.values():
            print("\n".join(_lines(each)))
    if different or failed:
        raise SystemExit(1)


def _wanted(args: argparse.Namespace, name: str) -> "ConvergenceRequest":
    from commsched.lab.convergence.cases import cases
    from commsched.lab.convergence.trainings import ConvergenceRequest

    if args.hosts < 2:
        raise CommschedError(f"--hosts must be at least 2, got {args.hosts}")
    quick = [case.name for case in cases(name) if case.name in QUICK_CASES]
    return ConvergenceRequest(
        table=name,
        names=args.case or (quick if args.quick else ()),
        hosts=args.hosts,
        folds=1 if args.quick else 5,
        seeds=2 if args.quick else 5,
        tune=args.tune,
        time_limit=float("inf") if args.time_limit is None else args.time_limit,
    )


def _time(args: argparse.Namespace, requests: "Sequence[ConvergenceRequest]") -> None:
    """Start a testbed of each size, calibrate it once, and time the cases."""
    from commsched import files
    from commsched.lab.convergence.step_times import Where, calibrated, timed
    from commsched.lab.testbed.bed import Testbed
    from commsched.lab.validate.fabrics import ShapedFabric

    files.make_folder(args.folder)
    for lanes in dict.fromkeys(wanted.lanes for wanted in requests):
        path = args.folder / (MACHINE if lanes == LANES else f"machine-{lanes}.json")
        with Testbed.up(args.hosts, lanes, (args.rate,)) as bed:
            fabric = ShapedFabric(bed)
            name = str(bed.spec)
            calibrate = partial(_calibrate, fabric, path, name)
            where = Where(
                machine=calibrated(path, name, calibrate),
                execute=fabric.execute,
                jitter=args.jitter,
                name=name,
            )
            for wanted in requests:
                if wanted.lanes == lanes:
                    timed(wanted, where, args.folder, say)


def _calibrate(fabric: "ValidationFabric", path: Path, name: str) -> None:
    say(f"calibrating {name} ({CALIBRATION:g} s)")
    fabric.run("calibrate", "-o", str(path), "--seconds", str(CALIBRATION))


HEADER = ("case", "runs", "loss", "right", "against dense", "wire bytes", "steps to its loss")
TIMES = (
    "case",
    "compute",
    "predicted ms",
    "measured ms",
    "p10-p90",
    "of dense",
    "s to its loss",
    "exchanges ms",
    "state",
)
TARGETS = ("target", "asked", "measured", "holds")


def _lines(found: "ConvergenceTable") -> Iterator[str]:
    """Print accuracies, step times, and the targets from the papers."""
    from commsched.lab.convergence.targets import targets

    yield f"{found.net}, {found.ranks} ranks, {found.steps} steps; means +- intervals of 95 %"
    yield table(HEADER, [_learnt(case, found) for case in found.cases], range(1, len(HEADER)))
    yield from _tuned(found)
    yield from _cosines(found)
    rows = [(case, times) for case in found.cases for times in case.times]
    if rows:
        one = rows[0][1]
        yield (
            f"{one.testbed}, {one.scale:g} times the elements, emulated compute that varies by"
            f" {one.jitter:.0%}; compute per second of dense exchanges in front"
        )
        rows.sort(key=lambda row: row[1].ratio)
        yield table(TIMES, [_timed(case, times, found) for case, times in rows], range(1, 9))
        yield from _sources([times for _, times in rows])
    if promised := list(targets(found)):
        held = {True: "yes", False: "no", None: "undecided"}
        words = [(*x[:3], held[x.holds]) for x in promised]
        yield table(TARGETS, words)


def _tuned(found: "ConvergenceTable") -> Iterator[str]:
    """Print the validation loss for each rate, of the cases whose rate was tuned."""
    from commsched.lab.convergence.tuning import best

    rows = [
        (case.name, f"{best(case.tuned):g}", ", ".join(map(_loss, case.tuned)))
        for case in found.cases
        if case.tuned
    ]
    if rows:
        yield "rate of least loss on validation data, and the loss with each rate"
        yield table(("case", "rate", "rate: loss"), rows, (1,))


def _loss(tried: "Tried") -> str:
    loss = "diverged" if tried.loss is None else f"{tried.loss:.4g}"
    return f"{tried.rate:g}: {loss}"


def _cosines(found: "ConvergenceTable") -> Iterator[str]:
    """Print the cosine between each layer's local gradient and the whole loss's gradient."""
    rows = [
        (case.name, each.layer, f"{each.curve[0]:.2f}", f"{each.curve[-1]:.2f}")
        for case in found.cases
        for each in case.cosines
    ]
    if rows:
        yield "cosine of each layer's local gradient with the gradient of the whole net's loss"
        yield table(("case", "layer", "at the start", "at the end"), rows, (2, 3))


def _sources(every: "Sequence[StepTimes]") -> Iterator[str]:
    """Yield the source of each ratio of compute to exchanges."""
    from commsched.lab.convergence.cases import RATIOS

    for name, value in {times.ratio: times.value for times in every}.items():
        yield f"compute {value:.3g}: {RATIOS[name].source}"


def _learnt(case: "CaseResult", found: "ConvergenceTable") -> tuple[str, ...]:
    from commsched.train.trials import mean

    held, ends = found.against_dense(case), case.trained.trials
    losses = f"{mean(case.losses)}" if len(case.losses) == len(ends) else "no number"
    return (
        case.name,
        str(len(ends)),
        losses,
        case.accuracy.in_points(),
        "-" if held is None else held.accuracy.in_points("+"),
        nbytes(case.sent_bytes),
        "-" if held is None or held.steps is None else str(held.steps),
    )


def _timed(case: "CaseResult", times: "StepTimes", found: "ConvergenceTable") -> tuple[str, ...]:
    dense, held = found.times("dense", times.ratio), found.against_dense(case)
    steps = None if held is None else held.steps
    return (
        case.name,
        f"{times.value:.3g}",
        f"{times.predicted * 1e3:.1f}",
        f"{times.measured * 1e3:.1f}",
        f"{times.low * 1e3:.1f}-{times.high * 1e3:.1f}",
        "-" if dense is None else f"{times.measured / dense.measured:.2f}",
        "-" if steps is None else f"{steps * times.measured:.2f}",
        f"{times.moved()[1] * 1e3:.1f}",
        nbytes(times.state_bytes),
    )


def _data(found: "ConvergenceTable") -> dict[str, Any]:
    """Return a table as JSON data; accuracies are shares."""
    import msgspec

    from commsched.lab.convergence.targets import targets
    from commsched.train.trials import mean

    rows: list[dict[str, Any]] = []
    for case in found.cases:
        held = found.against_dense(case)
        rows.append(
            {
                "case": case.name,
                "family": case.family,
                "trainings": len(case.trained.trials),
                "losses": mean(case.losses)._asdict() if case.losses else None,
                "accuracy": case.accuracy._asdict(),
                "against_dense": None if held is None else held.accuracy._asdict(),
                "steps_to_dense_loss": None if held is None else held.steps,
                "sent_mean_bytes": case.sent_bytes,
                "tuned": [msgspec.to_builtins(one) for one in case.tuned],
                "times": [msgspec.to_builtins(times) for times in case.times],
            }
        )
    promised = [target._asdict() for target in targets(found)]
    head = {"net": found.net, "ranks": found.ranks, "steps": found.steps}
    return {**head, "cases": rows, "targets": promised}
