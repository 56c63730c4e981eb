"""`commsched sweep`: plans of many nets, machines, planners and bandwidths, a row each."""

import argparse
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli import size
from commsched.cli.options import Flag, Option, Table, command, output_file
from commsched.errors import Agreed, CommschedError

if TYPE_CHECKING:
    from commsched.study.cells import Cell

EXAMPLE = """\
examples:
  commsched sweep --net resnet50,bert-base --machine p3.16xlarge --ranks 32,64 \\
    --planner ddp-25mb,best --bandwidth 10gbit,25gbit,100gbit --allow -,fp16 -o sweep.csv
  commsched sweep study.toml -o sweep.csv --jobs 2
  mpiexec -n 5 commsched sweep study.toml -o sweep.csv
  commsched plot sweep.csv --x bandwidth --y step --lines planner -o sweep.pdf

A study is the product of the lists. Commas separate the values of a list, blanks the parts of one
value; - stands for the value of the net or the machine. The keys of a TOML file are the options'
names: keys at its top hold for all studies, keys in a [[study]] table for that one. Each finished
row is written at once: the same command continues a study that was interrupted. Under mpiexec
rank 0 hands out the cells, and the other ranks plan.
"""
TABLES = (".csv", ".parquet")
LISTS = (
    ("net", "NET", "shipped nets, or net files"),
    ("machine", "M", "shipped machines, or machine files"),
    ("nodes", "N", "numbers of nodes"),
    ("ranks", "N", "numbers of ranks, which fill nodes; instead of --nodes"),
    ("bandwidth", "RATE", "rates of a node's port, such as 10gbit; as --set nic="),
    ("set", "KEY=VALUE", "other values for keys of the machine file; several with ; between"),
    ("strategy", "NAME", "strategies, each with its parameters: '1f1b stages=4'"),
    ("planner", "NAME", "planners: best, greedy, or another system's, such as ddp-25mb"),
    ("allow", "CODEC", "lossy codecs that may be used, such as fp16"),
    ("method", "METHOD", "use no methods but these, such as ring+dense"),
    ("compute", "HOW", "seconds of the net: measured, modelled or scaled"),
    ("scale", "F", "multiply bytes and compute seconds of the net"),
    ("density", "D", "share of non-zeros of every gradient, such as 1%%"),
)
HELP = "plan the product of nets, machines, ranks, planners and bandwidths"
OPTIONS: Table = (
    Option("study", "STUDY.toml", "the lists as a file, instead of options", Path, nargs="?"),
    *(
        Option(f"--{name}{' --between' * (name == 'bandwidth')}", f"{metavar},...", help)
        for name, metavar, help in LISTS
    ),
    Option("-o --output", "FILE", "table to write: .csv or .parquet", output_file, required=True),
    Option("-j --jobs", "N", "processes that plan side by side", int, 1),
    size.FORCE_SIZE,
    Flag("--simulate", "simulate each plan; else only those of planners that search"),
    Option("--figure", "FILE", "also draw the step time over the bandwidth", output_file),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def sweep(args: argparse.Namespace) -> None:
    """Plan the rows that the table lacks, and print how fast."""
    from commsched.study import workers
    from commsched.study.run import run

    if workers.of_ranks() and args.jobs != 1:
        raise Agreed("--jobs is for one process; under mpiexec the other ranks plan; leave it out")
    suffix = args.output.suffix.lower()
    if suffix not in TABLES and not args.output.exists():
        raise CommschedError(f"{args.output}: cannot write {suffix!r} tables; use .csv or .parquet")
    if args.figure is not None:
        from commsched.plot.picture import check_suffix

        check_suffix(args.figure)  # before the work begins
    cells = _cells(args)
    _check_size(args, cells)
    if workers.of_ranks():
        with workers.ranks() as (executor, count):
            if executor is None:
                return
            done = run(cells, args.output, executor, count)
    else:
        several = workers.processes(args.jobs) if args.jobs != 1 else nullcontext()
        with several as executor:
            done = run(cells, args.output, executor, args.jobs)
    print(done.sentence())
    print(f"written to {args.output}")
    if args.figure is not None:
        from commsched.plot.study import StudyPicture, draw

        draw(done.rows, args.figure, StudyPicture())


def _check_size(args: argparse.Namespace, cells: "list[Cell]") -> None:
    """Refuse a study if one search is too large; many small ones may continue on another day."""
    from commsched.planner.search.problem import BASELINES

    requests = []
    searched = [one for one in cells if one.planner not in BASELINES]
    for cell in {(one.net, one.place, one.strategy): one for one in searched}.values():
        with suppress(CommschedError):  # its row will say why
            requests.append(cell.request())
    if requests:
        largest = max(requests, key=lambda one: one.machine.size * (1 + len(one.net.tensors)))
        size.check(args, f"a search for {largest.net.name}", size.planning(largest))


def _cells(args: argparse.Namespace) -> "list[Cell]":
    from commsched.study.cells import product_of, read

    given = {name: getattr(args, name).split(",") for name, *_ in LISTS if getattr(args, name)}
    if args.study is None:
        return product_of({**given, "simulate": args.simulate}, "commsched sweep")
    if given:
        raise CommschedError(f"--{next(iter(given))} and {args.study}: give the lists once")
    return [replace(cell, simulate=cell.simulate or args.simulate) for cell in read(args.study)]
