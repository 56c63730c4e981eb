"""`commsched validate`: measure the prediction errors on this machine, cell by cell."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commsched import files
from commsched.cli.options import Commands, Flag, ListOption, Option, add_command
from commsched.cli.quantities import PATIENCE, PERCENT, POSITIVE, SECONDS
from commsched.cli.signals import end_well
from commsched.errors import CommschedError
from commsched.text_table import table
from commsched.units import count, nbytes, seconds

if TYPE_CHECKING:
    from commsched.lab.validate.main import ValidationRequest
    from commsched.lab.validate.table import Bar, Summary, ValidationRow

EXAMPLE = """\
example:
  sudo commsched validate --quick
  sudo commsched validate -o validation --fail-above 15%
  commsched validate --fabric shared --net resnet50 --method ring --method fp16

A testbed is calibrated once, this machine once per net. Each net is scaled so that its ring
all-reduce lasts a fifth of a second (a tenth on this machine). It is then predicted and run with
one method for all buckets. By default, six families of methods run with every net, and each other
family with one net per fabric. FOLDER keeps machines, plans and timelines; finished cells are not
run again. Exits with status 1 if a bar is missed, or if a cell's error exceeds --fail-above.
"""
QUICK_FABRICS, QUICK_NETS = ("shared", "400mbit"), ("resnet50", "lstm")
QUICK_SCALE, QUICK_SECONDS = 0.5, 14.0


OPTIONS = (
    Option("-o --output", "FOLDER", "folder of all results", Path, Path("validation")),
    Flag("--quick", "two fabrics, two smaller nets: 3 minutes"),
    ListOption(
        "--fabric",
        "NAME",
        "shared, 100mbit, 400mbit, 1gbit, slow (one slow host) or gpu; default: all but gpu that"
        " this machine supports",
    ),
    ListOption("--net", "NAME", "net; default: all five"),
    ListOption("--method", "FAMILY", "family or method, for every net; default: all families"),
    Option("--hosts", "N", "hosts of a testbed", int, 2),
    Option("--lanes", "N", "ranks per host", int, 2),
    Option("--scale", "X", "multiply bytes and seconds of the nets; default: 1", POSITIVE),
    Option("--steps", "N", "steps per run, including one warm-up step", int, 11),
    Option("--seconds", "TIME", "duration of the calibration of a fabric; default: 30 s", SECONDS),
    Option("--patience", "TIME", "time for repeating disturbed measurements", PATIENCE, 60.0),
    Option("--fail-above", "SHARE", "largest error allowed in a cell", PERCENT),
    Flag("--json", "print rows, summaries and bars as JSON"),
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "predict and run nets on several fabrics, and report the prediction errors"
    add_command(commands, "validate", validate, text, OPTIONS, EXAMPLE)


def validate(args: argparse.Namespace) -> int:
    """Run the missing cells, print the table, draw the figure."""
    from commsched.lab.validate.main import validate as validated
    from commsched.lab.validate.table import bars
    from commsched.plot.accuracy import draw

    wanted = _wanted(args)
    end_well()
    files.make_folder(args.output)
    rows = validated(wanted, args.output, _say, _Progress(len(wanted.cells)))
    judged = bars(rows)
    draw(rows, args.output / "accuracy.png")
    print(_json(rows, judged) if args.json else _text(rows, judged))
    _say(f"{args.output}/: table.json, accuracy.png, and per fabric its machine and timelines")
    if args.fail_above is not None:
        return int(any(abs(row.error) > args.fail_above for row in rows))
    return int(not all(bar.met for bar in judged))


def _wanted(args: argparse.Namespace) -> "ValidationRequest":
    from commsched.lab.validate.cells import CROSSED, NETS
    from commsched.lab.validate.fabrics import FABRICS, GPU, FabricShape, checked
    from commsched.lab.validate.main import ValidationRequest

    shape = FabricShape(args.hosts, args.lanes)
    if min(args.hosts, args.lanes) < 1:
        raise CommschedError("--hosts and --lanes must be at least 1")
    if shape.ranks < 2:
        raise CommschedError("--hosts and --lanes must give at least 2 ranks")
    if args.steps < 3:
        raise CommschedError(f"--steps must be at least 3, got {args.steps}")
    scale = args.scale if args.scale is not None else QUICK_SCALE if args.quick else 1.0
    usual = QUICK_SECONDS if args.quick else ValidationRequest.seconds
    spent = usual if args.seconds is None else args.seconds
    default = QUICK_FABRICS if args.quick else FABRICS
    fabrics = chosen("--fabric", args.fabric, (*FABRICS, GPU), default)
    if not args.fabric:
        fabrics = possible(fabrics)
    for name in fabrics:
        checked(name, shape)
    return ValidationRequest(
        fabrics=fabrics,
        nets=chosen("--net", args.net, NETS, QUICK_NETS if args.quick else NETS),
        families=_families(args.method) if args.method else tuple(CROSSED),
        others=not args.method and not args.quick,
        shape=shape,
        scale=scale,
        steps=args.steps,
        seconds=spent,
        patience=args.patience,
    )


def chosen(
    option: str, given: Sequence[str] | None, known: Sequence[str], default: Sequence[str]
) -> tuple[str, ...]:
    """Return the names that the user gave, or the default, in the order of `known`."""
    for name in given or ():
        if name not in known:
            raise CommschedError(f"{option} must be one of {', '.join(known)}, got {name!r}")
    return tuple(name for name in known if name in (given or default))


def _families(given: Sequence[str]) -> tuple[str, ...]:
    """Check families and methods, and remove duplicates."""
    from commsched.exchange.registry import find_method
    from commsched.lab.validate.cells import METHODS

    for name in given:
        find_method(METHODS.get(name, name))
    return tuple(dict.fromkeys(given))


def possible(fabrics: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out testbeds, with a message, if this machine cannot create them."""
    from commsched.lab.testbed.system import lacking
    from commsched.lab.validate.fabrics import SHARED

    reason = lacking()
    if reason is None:
        return fabrics
    _say(f"only shared memory: {reason}")
    return (SHARED,)


class _Progress:
    """Prints a line on stderr per finished cell."""

    def __init__(self, cells: int) -> None:
        self._cells, self._done, self._begun = cells, 0, time.monotonic()

    def __call__(self, row: "ValidationRow") -> None:
        self._done += 1
        _say(
            f"[{self._done}/{self._cells}, {time.monotonic() - self._begun:.0f} s]"
            f" {row.fabric} {row.net} {row.family}: predicted {seconds(row.predicted)},"
            f" measured {seconds(row.measured)}, {row.error:+.1%}"
        )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _json(rows: "Sequence[ValidationRow]", judged: "Sequence[Bar]") -> str:
    import msgspec

    data = {
        "rows": [msgspec.to_builtins(row) | {"error": row.error} for row in rows],
        "summaries": [summary._asdict() for summary in _summaries(rows)],
        "bars": [bar._asdict() for bar in judged],
    }
    return json.dumps(data, indent=1)


def _summaries(rows: "Sequence[ValidationRow]") -> "list[Summary]":
    from commsched.lab.validate.table import summary

    names = dict.fromkeys(row.fabric for row in rows)
    return [summary(name, [row for row in rows if row.fabric == name]) for name in names]


def _text(rows: "Sequence[ValidationRow]", judged: "Sequence[Bar]") -> str:
    cells = [
        (
            row.fabric,
            row.net,
            row.family,
            nbytes(row.nbytes),
            f"{row.predicted * 1e3:.1f}",
            f"{row.measured * 1e3:.1f}",
            f"{row.error:+.1%}",
            f"{row.spread:.1%}",
            "-" if row.stolen is None else f"{row.stolen:.1%}",
        )
        for row in rows
    ]
    header = ("fabric", "net", "method", "gradients", "predicted ms", "measured ms", "error")
    totals = ("fabric", "cells", "median", "p90", "worst", "collectives", "their phases")
    summaries = [(s.what, str(s.cells), *(f"{v:.1%}" for v in s[2:7])) for s in _summaries(rows)]
    lines = [
        table((*header, "spread", "stolen"), cells, range(3, 9)),
        "",
        table(totals, summaries, range(1, 7)),
        "",
        *(
            f"{'met   ' if bar.met else 'MISSED'} {bar.what}: {bar.value:.1%} (bar {bar.limit:.1%})"
            for bar in judged
        ),
        f"{count(len(rows), 'cell')}, {count(rows[0].ranks, 'rank')} each; errors of the median"
        " iteration, spread: p10 to p90 of the measured steps, stolen: processor time that other"
        " guests of the host took meanwhile",
    ]
    return "\n".join(lines)
