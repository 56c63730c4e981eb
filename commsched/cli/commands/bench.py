"""`commsched bench`: benchmarks of this library."""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from commsched.cli import bench_convergence as convergence
from commsched.cli import bench_options as flags
from commsched.cli import size
from commsched.cli.options import (
    COMMANDS,
    TIMEOUT,
    Commands,
    Run,
    Table,
    add_command,
    add_options,
)
from commsched.cli.ranks import begin
from commsched.cli.signals import end_well
from commsched.errors import CommschedError
from commsched.files import check_writable, make_folder
from commsched.progress import each
from commsched.terminal import say
from commsched.text_table import table
from commsched.units import nbytes, seconds

if TYPE_CHECKING:
    from commsched.lab.bench.codecs import CodecRow
    from commsched.lab.bench.row import BenchRow

EXAMPLE = """example:
  commsched bench simulator
  commsched bench planner --part quality --net resnet50 --net vgg16
  mpiexec -n 4 commsched bench all-reduce
  commsched bench --device cuda -o gpu
  commsched bench codecs --help       # the options of one benchmark
"""


class Benchmark(NamedTuple):
    """A benchmark: its function, an example of its command line, and its options."""

    run: Callable[[argparse.Namespace], int | None]
    example: str
    options: Table


BENCHES: dict[str, Benchmark] = {}


def _benchmark(example: str, options: Table) -> Callable[[Run], Run]:
    """Return a decorator that registers a function under its name as a benchmark."""

    def declared(run: Run) -> Run:
        BENCHES[run.__name__.replace("_", "-")] = Benchmark(run, example, options)
        return run

    return declared


def add(commands: Commands) -> None:
    """Declare the command, and each benchmark with its own options."""
    text = "measure simulator, planner and codecs; under mpiexec, exchanges and overlap"
    p = add_command(commands, "bench", bench, text, (), EXAMPLE)
    names = p.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    for name, (run, example, taken) in sorted(BENCHES.items()):
        line = (run.__doc__ or "").partition(".\n")[0].rstrip(".")
        line = line[:1].lower() + line[1:]
        epilog = f"example:\n  {example}\n"
        own = add_command(names, name, bench, line, taken, epilog, ranks=TIMEOUT in taken)
        for action in own._actions:  # an option before the benchmark's name keeps its value
            p.set_defaults(**{action.dest: action.default} if action.dest != "help" else {})
            action.default = argparse.SUPPRESS
    add_options(p.add_argument_group("without a NAME, all benchmarks of a GPU"), flags.ALONE)


COMMANDS["bench"] = add


def bench(args: argparse.Namespace) -> None:
    """Run one benchmark and print its table; benchmarks use one core, or one core per rank."""
    from commsched.kernels.threads import one_thread

    one_thread()
    from commsched.run.wire.device import check_device

    check_device(args.device)
    name = args.name or ("gpu" if args.device == "cuda" else "")
    if not name:
        raise CommschedError(f"bench needs a NAME; known: {', '.join(sorted(BENCHES))}")
    if args.device != "cpu" and name not in ON_DEVICE:
        able = ", ".join(ON_DEVICE)
        raise CommschedError(f"bench {name} has no --device {args.device}; use it for {able}")
    BENCHES[name].run(args)


@_benchmark("commsched bench simulator", [flags.JSON])
def simulator(args: argparse.Namespace) -> None:
    """Measure pricing and simulation on one core, without mpiexec."""
    from commsched.lab.bench.simulator import rows

    _print(rows(), args)


@_benchmark("commsched bench simulators --astra-sim FILE --loggopsim FILE", flags.SIMULATORS)
def simulators(args: argparse.Namespace) -> None:
    """Compare our predictions with those of ASTRA-sim and LogGOPSim for the plans we export."""
    from commsched.lab.bench.simulators import rows

    _print(rows(args.astra_sim, args.loggopsim), args)


@_benchmark("commsched bench planner --part optimum --seeds 0:50", flags.PLANNER)
def planner(args: argparse.Namespace) -> None:
    """Measure the planner on one core, without mpiexec."""
    from commsched.lab.bench.optimum import INSTANCES
    from commsched.lab.bench.planner import PARTS, rows

    parts = args.part or PARTS
    seeds = range(INSTANCES) if args.seeds is None else _seeds(args.seeds)
    _print(rows(parts, seeds, args.net, args.machine, args.set), args)


def _seeds(text: str) -> range:
    """Read FIRST:STOP."""
    first, colon, stop = text.partition(":")
    good = colon and all(w.isascii() and w.isdecimal() and len(w) < 10 for w in (first, stop))
    if not good or int(first) >= int(stop):
        raise CommschedError(f"--seeds {text}: expected FIRST:STOP, two numbers in this order")
    return range(int(first), int(stop))


def _print(rows: "Iterator[BenchRow]", args: argparse.Namespace) -> None:
    """Print each row as soon as it is measured."""
    found = []
    for row in each(rows, f"bench {args.name}"):
        found.append(row)
        if not args.json:
            took = "" if row.seconds is None else seconds(row.seconds)
            print(f"{row.what:48}  {took:>10}  {row.result}  (asked: {row.bar})")
    if args.json:
        print(json.dumps([row._asdict() for row in found], indent=1))


@_benchmark("sudo commsched bench torch --model gpt --bed 2x200mbit -o peers", flags.PEERS)
def torch(args: argparse.Namespace) -> None:
    """Train real PyTorch models on testbeds, by our plans and by DistributedDataParallel."""
    from commsched.lab.peers.main import BEDS, MODELS, PeersRequest, rows

    for name in args.model:
        if name not in MODELS:
            raise CommschedError(f"--model must be one of {', '.join(MODELS)}, got {name!r}")
    wanted = PeersRequest(
        folder=args.output or Path("peers"),
        models=tuple(name for name in MODELS if name in (args.model or MODELS)),
        beds=args.bed or BEDS,
        seeds=args.training_seeds,
    )
    if args.quick:
        wanted = replace(wanted, rounds=3, steps=2, calibration=15.0, learning_steps=50)
    make_folder(wanted.folder)
    end_well()
    _print(rows(wanted, say), args)


@_benchmark("mpiexec -n 2 commsched bench all-reduce --device cuda", flags.ON_DEVICES)
def all_reduce(args: argparse.Namespace) -> None:
    """Compare our dense all-reduces with the MPI's own, 1 KB to 64 MB."""
    begin(args)
    from commsched.lab.bench import all_reduce as benchmark

    found = benchmark.all_reduce(args.timeout, args.device)
    if found is None:
        return
    cells, ranks = found
    if args.json:
        print(json.dumps([cell._asdict() for cell in cells], indent=1))
        return
    columns = ("MPI", *benchmark.COLLECTIVES)
    print(f"all-reduce of float32 on {ranks} ranks, taking turns; us, median of the slowest rank")
    for what, mpi, ours, best in (
        ("from sleep", "mpi", "ours", "best"),
        ("right after each other", "mpi_hot", "ours_hot", "best_hot"),
    ):
        rows = [
            (
                nbytes(cell.nbytes),
                *(f"{x * 1e6:.1f}" for x in (getattr(cell, mpi), *getattr(cell, ours).values())),
                f"{getattr(cell, best):.2f}",
            )
            for cell in cells
        ]
        print(f"\n{what}:")
        print(table(("size", *columns, "best/MPI"), rows, set(range(len(columns) + 2))))


@_benchmark("mpiexec -n 2 commsched bench runtime", flags.RUNTIME)
def runtime(args: argparse.Namespace) -> None:
    """Measure latency, processor time per exchange, and the compute speed during an exchange."""
    begin(args)
    from commsched.lab.bench.runtime import PARTS, rows

    _on_ranks(rows(args.part or tuple(PARTS), args.timeout), args)


@_benchmark("mpiexec -n 2 commsched bench torch-overhead", flags.ON_RANKS)
def torch_overhead(args: argparse.Namespace) -> None:
    """Measure the overheads of a PyTorch script: hand-over, attach, a timeline, capture."""
    begin(args)
    from commsched.lab.peers.overhead import rows

    _on_ranks(rows(args.timeout), args)


def _on_ranks(found: "Iterator[BenchRow]", args: argparse.Namespace) -> None:
    """Measure on all ranks, print on rank 0."""
    from commsched.run.job import launcher

    if launcher.environment_rank() in (None, 0):
        _print(found, args)
    else:
        list(found)


@_benchmark("mpiexec -n 2 commsched bench overlap", flags.ON_DEVICES)
def overlap(args: argparse.Namespace) -> None:
    """Measure how much of a 32 MB exchange emulated compute hides."""
    begin(args)
    from commsched.lab.bench import runtime

    found = runtime.overlap(args.timeout, args.device)
    if found is None:
        return
    if args.json:
        print(json.dumps({**found._asdict(), "hidden_share": found.share}, indent=1))
        return
    print(
        f"exchange of 32 MB on {found.ranks} ranks: {seconds(found.exchange)}, of it"
        f" {found.share:.1%} hidden under compute; polling takes {found.polling:.1%} of a core"
    )


@_benchmark("mpiexec -n 2 commsched bench buffers --device cuda", flags.BUFFERS)
def buffers(args: argparse.Namespace) -> None:
    """Measure messages between a device and MPI."""
    from commsched.run.job import launcher

    if args.output is not None and launcher.environment_rank() in (None, 0):
        check_writable(args.output)
    begin(args)
    from commsched.cli import bench_gpu
    from commsched.lab.bench import device_buffers as runtime

    found = runtime.buffers(args.timeout, args.device)
    if found is not None:
        bench_gpu.show_buffers(found, args)


@_benchmark("commsched bench gpu -o gpu", flags.GPU)
def gpu(args: argparse.Namespace) -> None:
    """Run all benchmarks of a GPU."""
    from commsched.cli import bench_gpu

    bench_gpu.everything(args.output or Path("gpu"), args)


@_benchmark("mpiexec -n 8 commsched bench sparse --density 0.01 --method node-union", flags.SPARSE)
def sparse(args: argparse.Namespace) -> None:
    """Measure sums of sparse gradients, from lists to lists."""
    begin(args)
    from commsched.lab.bench import sparse as runtime

    given = {
        "numel": args.numel,
        "densities": tuple(args.density) or None,
        "methods": tuple(args.method) or None,
        "repeats": args.repeats,
        "support": args.support,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    size.check(args, f"--numel {args.numel}", size.coding(args.numel or 0, args.repeats or 1, 1))
    options = runtime.SparseOptions(timeout=args.timeout, progress=not args.json, **chosen)
    found = runtime.sparse(options)
    if found is None:
        return
    cells, group = found
    if args.json:
        print(json.dumps([cell._asdict() for cell in cells], indent=1))
        return
    nodes = len(group.members)
    print(f"{group.size} ranks on {nodes} nodes, median of the slowest rank, list to list;")
    print(f"MPI_Allreduce takes {seconds(cells[0].mpi_seconds)}")
    numbers = set(range(len(runtime.HEADER))) - runtime.WORDS
    print(table(runtime.HEADER, list(runtime.rows(cells)), numbers))


@_benchmark("commsched bench codecs --codec quant:8 --codec topk:0.01", flags.CODECS)
def codecs(args: argparse.Namespace) -> None:
    """Measure encode, add and decode of codecs on one core or a GPU, without mpiexec."""
    if args.device == "cuda":
        from commsched.cli import bench_gpu

        bench_gpu.codecs(args)
        return
    from commsched.lab.bench import codecs as coding

    names = coding.chosen(args.codec)
    numel = coding.NUMEL if args.numel is None else args.numel
    repeats = coding.REPEATS if args.repeats is None else args.repeats
    what = f"--numel {numel} --repeats {repeats}"
    size.check(args, what, size.coding(numel, repeats, len(names)))
    found = [*each((coding.row(name, numel, repeats) for name in names), f"{len(names)} codecs")]
    if args.json:
        print(json.dumps([_codec_json(row) for row in found], indent=1))
        return
    header = ("codec", "size", "device", "encode", "spread", "add", "decode", "wire", "of copy")
    print("GB of gradient per second, medians; spread: of encode, slowest to fastest repeat")
    cells = [_codec_cells(row) for row in found]
    print(table((*header, "asked"), cells, set(range(3, 10)) | {1}))


def _codec_cells(row: "CodecRow") -> tuple[str, ...]:
    from commsched.lab.bench.codecs import gigabytes

    size = 4e-9 * row.numel
    encode, add, decode = (
        "-" if rate is None else f"{rate:.2f}"
        for rate in (gigabytes(each, row.numel) for each in (row.encode, row.add, row.decode))
    )
    return (
        row.codec,
        nbytes(4 * row.numel),
        row.device,
        encode,
        f"{size / row.encode.most:.2f}-{size / row.encode.least:.2f}",
        add,
        decode,
        nbytes(row.nbytes),
        f"{row.copy.median / row.encode.median:.2f}",
        "-" if row.asked is None else f"{row.asked:g}",
    )


def _codec_json(row: "CodecRow") -> dict[str, object]:
    """Return measured seconds and the rates of the table."""
    from commsched.lab.bench.codecs import Timing, gigabytes

    plain = {
        key: value._asdict() if isinstance(value, Timing) else value
        for key, value in row._asdict().items()
    }
    rates = {
        f"{key}_GBps": gigabytes(getattr(row, key), row.numel)
        for key in ("encode", "add", "decode", "copy")
    }
    return {**plain, **rates}


ON_DEVICE = ("codecs", "all-reduce", "overlap", "buffers", "gpu")
_benchmark("commsched bench convergence --quick", convergence.OPTIONS)(convergence.convergence)
