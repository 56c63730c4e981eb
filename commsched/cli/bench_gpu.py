"""What `commsched bench` says of a GPU: its codecs, its messages, and how true predictions are."""

import argparse
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli.table import table
from commsched.units import nbytes, seconds

if TYPE_CHECKING:
    from commsched.bench.gpu import GpuRow
    from commsched.run.buffers import Buffers

NETS = ("vgg16", "bert-base", "gpt2")  # whose predicted steps are compared
METHODS = ("ring", "native", "fp16")
LIMIT = 600.0  # s for the messages
HEADER = ("codec", "fewest bytes", "time", "spread", "copy", "of copy", "asked", "extra memory")


def codecs(args: argparse.Namespace) -> None:
    """Measure codecs on the GPU and print the table."""
    from tqdm import tqdm

    from commsched.bench import gpu
    from commsched.bench.codecs import REPEATS
    from commsched.kernels.device import gpus

    gpus()
    from commsched.kernels.cuda.timing import versions

    numel = gpu.NUMEL if args.numel is None else args.numel
    repeats = REPEATS if args.repeats is None else args.repeats
    # disable=None: on a terminal only
    bar = tqdm(gpu.chosen(args.codec), unit="codec", desc="codecs", disable=None, leave=False)
    found = [gpu.row(name, numel, repeats) for name in bar]
    if args.json:
        print(json.dumps({**versions(), "rows": [_json(row) for row in found]}, indent=1))
        return
    print(", ".join(f"{key} {value}" for key, value in versions().items()))
    print(f"{nbytes(4 * numel)} of float32; of copy: fewest bytes per second over a copy's")
    print(table(HEADER, [_cells(row, found) for row in found], set(range(1, len(HEADER)))))


def _cells(row: "GpuRow", rows: list["GpuRow"]) -> tuple[str, ...]:
    from commsched.bench.gpu import EXTRA

    least, most = seconds(row.seconds.least), seconds(row.seconds.most)
    return (
        row.codec,
        nbytes(row.fewest),
        seconds(row.seconds.median),
        f"{least}-{most}",
        seconds(row.copy.median),
        f"{row.of_copy:.1%}",
        _asked(row, rows),
        f"{row.extra / (4 * row.numel):.2f}x (<= {EXTRA:g}x)",
    )


def _asked(row: "GpuRow", rows: list["GpuRow"]) -> str:
    """The bar; the partition's is a share of the selection's time, which is beside it."""
    from commsched.bench.codecs import PARTITION
    from commsched.bench.gpu import SELECTION

    if row.asked is None:
        return "-"
    if row.codec != PARTITION:
        return f">= {row.asked:.0%}"
    times = [each.seconds.median for each in rows if each.codec == SELECTION]
    share = f", is {row.seconds.median / times[0]:.1%}" if times else ""
    return f"< {row.asked:.0%} of {SELECTION}{share}"


def _json(row: "GpuRow") -> dict[str, object]:
    """Seconds as measured, and what the table shows."""
    plain = row._asdict() | {"seconds": row.seconds._asdict(), "copy": row.copy._asdict()}
    return {**plain, "of_copy": row.of_copy}


def show_buffers(found: "Buffers", as_json: bool) -> None:
    """Print rates of messages, and the bars."""
    from commsched.run.buffers import POINTED, STAGED

    if as_json:
        ratios = {"of_copy": found.of_copy, "of_staged": found.of_staged}
        print(json.dumps({**found._asdict(), **ratios}, indent=1))
        return

    def rate(time: float) -> str:
        return f"{found.nbytes / time * 1e-9:.2f} GB/s"

    print(f"{found.device}: messages of {nbytes(found.nbytes)} between two ranks, {found.way}")
    print(f"copy to pinned memory   {rate(found.copy)}")
    staged = f"{rate(found.staged)}, {found.of_copy:.1%} of the copy"
    print(f"through pinned memory   {staged} (asked: >= {STAGED:.0%})")
    if found.pointed is None:
        print("by pointers             this MPI does not take them")
    else:
        pointed = f"{rate(found.pointed)}, {found.of_staged:.2f}x of through pinned memory"
        print(f"by pointers             {pointed} (asked: >= {POINTED:g}x)")


def everything(folder: Path, args: argparse.Namespace) -> None:
    """Codecs, messages, and predicted against measured steps of 2 and of 4 ranks."""
    from commsched.kernels.device import gpus
    from commsched.run import job

    gpus()
    codecs(args)
    job.commsched(2, ("bench", "buffers", "--device", "cuda", *["--json"] * args.json), LIMIT)
    for lanes in (2, 4):
        words = ["validate", "-o", str(folder / f"{lanes}-ranks"), "--fabric", "gpu"]
        words += ["--hosts", "1", "--lanes", str(lanes), *["--json"] * args.json]
        words += [word for net in NETS for word in ("--net", net)]
        words += [word for method in METHODS for word in ("--method", method)]
        # Status 1 says that a bar was missed: its line says which.
        subprocess.run([*job.COMMAND, *words], check=False)
