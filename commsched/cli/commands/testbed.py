"""`commsched testbed`: several shaped hosts on one Linux machine, for real runs."""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli.options import (
    COMMANDS,
    Commands,
    Flag,
    ListOption,
    Option,
    add_actions,
    add_command,
    add_options,
)
from commsched.cli.signals import end_well
from commsched.errors import CommschedError
from commsched.quantities import BYTES, SECONDS

if TYPE_CHECKING:
    from commsched.lab.testbed.bed import Completed, Testbed
    from commsched.lab.testbed.network import Traffic
    from commsched.lab.testbed.proof import Crossing
    from commsched.lab.testbed.spec import Spec

HOSTS, LANES = 4, 2
# Options of Open MPI's or MPICH's mpiexec that take no value, and two values; others take one.
FLAGS = ("allow-run-as-root", "oversubscribe", "tag-output", "report-bindings", "v", "q", "l")
PAIRS = ("mca", "gmca", "env", "genv")
EXAMPLE = """example:
  sudo commsched testbed up --hosts 4 --lanes 2 --rate 200mbit --rate h3=50mbit
  sudo commsched testbed run -- -n 8 commsched run plan.json -o measured.json
  sudo commsched testbed run --hosts 2 --rate 1gbit --expect 8MB -- -n 4 python train.py
  sudo commsched testbed down

The words after `--` are passed to mpiexec. `run` compares the bytes that crossed the shaped ports
with those that `commsched run` measured, or with --expect for each host that has ranks. It exits
with status 1 if a transport bypassed the ports.
"""


NAME = Option("--name", None, "name of the testbed; default: main")
RATE = ListOption("--rate", "[HOST=]RATE", "rate of all ports, or of one host's; default: 1gbit")
UP = (
    Option("--hosts", "N", "number of hosts", int, HOSTS),
    Option("--lanes", "N", "ranks per host", int, LANES),
    RATE,
    NAME,
    Flag("--replace", "replace a testbed of this name that is up with other hosts or rates"),
    Flag("--json", "print the testbed as JSON"),
)
RUN = (
    Option("--hosts", "N", f"number of hosts; default: {HOSTS}", int),
    Option("--lanes", "N", f"ranks per host; default: {LANES}", int),
    RATE,
    NAME,
    Option("--expect", "SIZE", "bytes that each host sends", BYTES),
    Option("--timeout", "TIME", "end the job after this time", SECONDS),
    Option("--report", "FILE", "write the bytes as JSON", Path),
    Option("words", "-- WORDS", "arguments of mpiexec", nargs=argparse.REMAINDER),
)
DOWN = (NAME, Flag("--all", "remove every testbed of this machine"))
STATUS = (Flag("--json", "print hosts and traffic as JSON"),)


def add(commands: Commands) -> None:
    """Declare the command and its four actions."""
    text = "several shaped hosts on one Linux machine, for runs over a real network"
    actions = add_actions(commands, "testbed", text, EXAMPLE)
    add_command(actions, "up", up, "create the hosts; keep an equal testbed that is up", UP)
    text = "run MPI ranks on the hosts, and check that their bytes crossed the ports"
    job = add_command(actions, "run", run, text, RUN)
    job.description = "With --hosts, --lanes or --rate: on a new testbed, removed after the job."
    add_command(actions, "down", down, "remove the hosts and end all their processes", DOWN)
    add_command(actions, "status", status, "list the hosts and the traffic of their ports", STATUS)


COMMANDS["testbed"] = add


def up(args: argparse.Namespace) -> None:
    """Create the hosts."""
    from commsched.lab.testbed.bed import NAME, Testbed

    end_well()
    bed = Testbed.up(
        args.hosts, args.lanes, args.rate, name=args.name or NAME, replace=args.replace
    )
    if args.json:
        hosts = zip(bed.spec.names, bed.spec.rates, strict=True)
        rows = [{"host": host, "bytes_per_second": rate} for host, rate in hosts]
        print(json.dumps({"name": bed.name, "lanes": bed.spec.lanes, "hosts": rows}, indent=1))
        return
    print(f"testbed {bed.name}: {bed.spec}")


def down(args: argparse.Namespace) -> None:
    """Remove hosts."""
    from commsched.lab.testbed import bed, network, system

    system.require()
    names = list(network.found()) if args.all else [args.name or bed.NAME]
    gone = [name for name in names if bed.down(name)] + bed.sweep()
    print(f"taken down: {', '.join(gone)}" if gone else "nothing was up")


def status(args: argparse.Namespace) -> None:
    """Show every testbed."""
    from commsched.lab.testbed import bed, network, system

    system.require()
    found = []
    for name in network.found():
        spec, used = network.read(name), bed.in_use(name)
        rows = _rows(spec, network.traffic(name, spec)) if spec else []
        lanes = spec.lanes if spec else None
        found.append({"name": name, "lanes": lanes, "in_use": used, "hosts": rows})
        if not args.json:
            what = str(spec) if spec else "is not whole; take it down"
            print(f"testbed {name}: {what}{', in use' if used else ''}")
            print(_table(rows), end="")
    if args.json:
        print(json.dumps(found, indent=1))
    elif not found:
        print("no testbed is up; commsched testbed up")


def run(args: argparse.Namespace) -> int:
    """Run a job; return its status, or 1 if its bytes bypassed the ports."""
    from commsched import files
    from commsched.lab.testbed.bed import NAME, Testbed

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise CommschedError("testbed run: nothing to run; give mpiexec's words after --")
    if args.report is not None:
        files.check_writable(args.report)
    end_well()
    if args.hosts is None and args.lanes is None and not args.rate:
        return _run(Testbed.find(args.name or NAME), args, words)
    hosts, lanes = args.hosts, args.lanes
    hosts, lanes = HOSTS if hosts is None else hosts, LANES if lanes is None else lanes
    if args.name is not None:
        raise CommschedError(
            "testbed run: --name is of hosts that are up; --hosts, --lanes and"
            " --rate make new ones for this job alone"
        )
    with Testbed.up(hosts, lanes, args.rate) as bed:
        return _run(bed, args, words)


def _run(bed: "Testbed", args: argparse.Namespace, words: Sequence[str]) -> int:
    from commsched.lab.validate.fabrics import launcher, variables

    before = _stamp(words)
    done = bed.launch(
        words,
        launcher=launcher(),
        timeout=args.timeout,
        variables=variables(),
        capture=False,
    )
    expected = None
    if args.expect is not None:
        from commsched.lab.testbed.proof import stated

        expected = stated(args.expect, bed.spec.hosts, _used(words, bed.spec))
    elif done.status == 0 and _stamp(words) != before:
        expected = _measured(words, bed.spec)
    return _judge(bed, done, expected, args.report)


def _judge(
    bed: "Testbed",
    done: "Completed",
    expected: "tuple[Crossing, ...] | None",
    report: Path | None,
) -> int:
    """Print the traffic of the ports and the missing bytes on stderr; return the exit status."""
    from commsched import files

    rows = _rows(bed.spec, done.counters, expected)
    print(f"testbed {bed.name}: {bed.spec}\n{_table(rows)}", end="", file=sys.stderr)
    if report is not None:
        files.write(report, {"status": done.status, "seconds": done.seconds, "hosts": rows})
    if done.status:
        print(f"commsched: the job ended with status {done.status}", file=sys.stderr)
        return done.status
    if expected is None:
        print(_crossed(done), file=sys.stderr)
        return 0
    from commsched.lab.testbed.proof import missing

    around = missing(expected, done.counters, bed.spec.names)
    for sentence in around:
        print(f"commsched: {sentence}", file=sys.stderr)
    if not around:
        print("all expected bytes crossed the shaped ports", file=sys.stderr)
    return int(bool(around))


def _crossed(done: "Completed") -> str:
    """Say how many bytes crossed the ports, for a job whose expected bytes are not known."""
    from commsched.units import nbytes

    sent = sum(traffic.data_sent for traffic in done.counters)
    if not sent:
        return "no bytes crossed the ports: the job sent none, or its transport bypassed them"
    return f"{nbytes(sent)} crossed the ports; --expect SIZE proves that it was all"


def _used(words: Sequence[str], spec: "Spec") -> int:
    """Count the hosts that the ranks of mpiexec's words fill."""
    counts = list(_counts(words))
    return min(spec.hosts, math.ceil(sum(counts) / spec.lanes)) if counts else spec.hosts


def _counts(words: Sequence[str]) -> Iterator[int]:
    """Yield the ranks of each program that mpiexec starts; a program's own words do not count."""
    ours = True  # before the program, where words are mpiexec's
    waits = list[str]()  # the option's name, once for each of its values still to come
    for word in words:
        if word == ":":
            ours, waits = True, []
        elif word.startswith("-"):  # no value: the waiting option is a flag unknown to FLAGS
            name = word.lstrip("-")
            waits = [] if "=" in word or name in FLAGS else [name] * (1 + (name in PAIRS))
        elif waits:
            if ours and waits.pop() in ("n", "np") and word.isdecimal():
                yield int(word)
        else:
            ours = False


def _job(words: Sequence[str]) -> argparse.Namespace | None:
    """Return the arguments of the `commsched run` among mpiexec's words, or None."""
    from commsched.cli.commands.run import OPTIONS

    for at, word in enumerate(words[:-1]):
        if Path(word).name == "commsched" and words[at + 1] == "run":
            parser = argparse.ArgumentParser(exit_on_error=False)
            add_options(parser.add_subparsers().add_parser("run"), OPTIONS)
            try:
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # the job reports it
                    return parser.parse_args(_without_plug_ins(words[at + 1 :]))
            except (argparse.ArgumentError, CommschedError, SystemExit):
                return None
    return None


def _without_plug_ins(words: Sequence[str]) -> list[str]:
    """Return the words without `--plugin FILE` and `--plugin=FILE`, which all commands take."""
    return [
        word
        for before, word in pairwise(["", *words])
        if "--plugin" not in (before, word) and not word.startswith("--plugin=")
    ]


def _stamp(words: Sequence[str]) -> int | None:
    """Return when the timeline of the `commsched run` among the words was written."""
    job = _job(words)
    try:
        return None if job is None else job.output.stat().st_mtime_ns
    except OSError:
        return None


def _measured(words: Sequence[str], spec: "Spec") -> "tuple[Crossing, ...]":
    """Return the port traffic that follows from plan and timeline of the words' `commsched run`."""
    from commsched.lab.testbed.proof import crossing
    from commsched.program.read_plan import read_plan
    from commsched.timeline import file as timeline_file

    job = _job(words)
    assert job is not None
    plan = read_plan(job.plan)
    return crossing(plan, timeline_file.read(job.output), spec)


def _rows(
    spec: "Spec", counters: "Sequence[Traffic]", expected: "Sequence[Crossing] | None" = None
) -> list[dict[str, object]]:
    """Return a row per host, with rates in B/s and sizes in B."""
    rows: list[dict[str, object]] = []
    for i, (host, rate, traffic) in enumerate(zip(spec.names, spec.rates, counters, strict=True)):
        row: dict[str, object] = {"host": host, "rate": rate, **traffic._asdict()}
        row |= {"data_sent": traffic.data_sent, "data_received": traffic.data_received}
        if expected is not None:
            row |= {"expected_sent": expected[i].sent, "expected_received": expected[i].received}
        rows.append(row)
    return rows


def _table(rows: Sequence[dict[str, object]]) -> str:
    from commsched.lab.testbed.spec import rate_text
    from commsched.text_table import table
    from commsched.units import nbytes

    if not rows:
        return ""
    columns = ["data_sent", "expected_sent", "data_received", "expected_received"]
    columns = [c for c in columns if c in rows[0]]
    names = {"data_sent": "sent", "data_received": "received"}
    header = ("host", "rate", *(names.get(c, "expected") for c in columns), "dropped")
    lines = [
        (
            str(row["host"]),
            rate_text(float(str(row["rate"]))),
            *(nbytes(float(str(row[c]))) for c in columns),
            str(row["dropped"]),
        )
        for row in rows
    ]
    return table(header, lines, range(1, len(header))) + "\n"
