"""Print the benchmarks of a GPU: codecs, messages, and prediction errors."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched import files
from commsched.cli.signals import end_well
from commsched.terminal import say
from commsched.text_table import table
from commsched.units import nbytes, seconds

if TYPE_CHECKING:
    from commsched.lab.bench.device_buffers import BufferSeconds
    from commsched.lab.bench.gpu_report import GpuReportOptions

HEADER = ("codec", "fewest bytes", "time", "spread", "copy", "of copy", "asked", "extra memory")


def codecs(args: argparse.Namespace) -> None:
    """Measure codecs on the GPU and print the table."""
    from commsched.kernels.device import gpus
    from commsched.lab.bench import gpu_report

    gpus()
    rows = gpu_report.codec_rows(_options(args), say)
    found = {**gpu_report.versions(), "rows": rows}
    print(json.dumps(found, indent=1) if args.json else _table(gpu_report.versions(), rows))


def _options(args: argparse.Namespace) -> "GpuReportOptions":
    from commsched.lab.bench.gpu_report import GpuReportOptions

    given = {"numel": args.numel, "repeats": args.repeats, "codecs": args.codec or None}
    known = {name: value for name, value in given.items() if value is not None}
    return GpuReportOptions(quick=args.quick, **known)


def _table(versions: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of codecs, compared with a copy."""
    size = f"{nbytes(4 * rows[0]['numel'])} of float32; " if rows else ""
    lines = [
        ", ".join(f"{key} {value}" for key, value in versions.items()),
        f"{size}of copy: fewest bytes per second over a copy's",
        table(HEADER, [_cells(row, rows) for row in rows], set(range(1, len(HEADER)))),
    ]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    from commsched.lab.bench.gpu import EXTRA

    took = row["seconds"]
    return (
        row["codec"],
        nbytes(row["fewest"]),
        seconds(took["median"]),
        f"{seconds(took['least'])}-{seconds(took['most'])}",
        seconds(row["copy"]["median"]),
        f"{row['of_copy']:.1%}",
        _asked(row, rows),
        f"{row['extra'] / (4 * row['numel']):.2f}x (<= {EXTRA:g}x)",
    )


def _asked(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the bar that a codec must meet: for `PARTITION` a share of the selection's time."""
    from commsched.lab.bench.codecs import PARTITION
    from commsched.lab.bench.gpu import SELECTION

    if row["asked"] is None:
        return "-"
    if row["codec"] != PARTITION:
        return f">= {row['asked']:.0%}"
    times = [each["seconds"]["median"] for each in rows if each["codec"] == SELECTION]
    share = f", is {row['seconds']['median'] / times[0]:.1%}" if times else ""
    return f"< {row['asked']:.0%} of {SELECTION}{share}"


def show_buffers(found: "BufferSeconds", args: argparse.Namespace) -> None:
    """Print rates and bars of messages; write them to --output, if given."""
    plain = {**found._asdict(), "of_copy": found.of_copy, "of_staged": found.of_staged}
    if args.output is not None:
        files.write(args.output, plain)
    print(json.dumps(plain, indent=1) if args.json else messages(plain))


def messages(found: Mapping[str, Any]) -> str:
    """Return rates and bars of messages."""
    from commsched.lab.bench.gpu import POINTED, STAGED

    def rate(name: str) -> str:
        return f"{found['nbytes'] / found[name] * 1e-9:.2f} GB/s"

    size = nbytes(found["nbytes"])
    lines = [
        f"{found['device']}: messages of {size} between two ranks, {found['way']}",
        f"copy to pinned memory   {rate('copy')}",
        f"through pinned memory   {rate('staged')}, {found['of_copy']:.1%} of the copy"
        f" (asked: >= {STAGED:.0%})",
        f"from host to host       {rate('hosted')}: MPI alone, without a GPU",
        "by pointers             this MPI does not take them",
    ]
    if found["pointed"] is not None:
        lines[-1] = (
            f"by pointers             {rate('pointed')}, {found['of_staged']:.2f}x of through"
            f" pinned memory (asked: >= {POINTED:g}x)"
        )
    return "\n".join(lines)


def everything(folder: Path, args: argparse.Namespace) -> None:
    """Measure codecs, messages, and the steps of 2 and 4 ranks against their predictions."""
    from commsched.kernels.device import gpus
    from commsched.lab.bench.gpu_report import lines, measured
    from commsched.plot.gpu import draw

    gpus()
    end_well()
    found = measured(folder, _options(args), say)
    draw(found, folder / "gpu.png")
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print(_table(found["versions"], found["codecs"]))
    for message in found["messages"]:
        print(messages(message))
    print("\n".join(lines(found)))
    print(f"written to {folder}/gpu.json and gpu.png")
