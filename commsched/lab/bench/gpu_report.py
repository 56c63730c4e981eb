"""The report of all GPU measurements in one document, with the bar of each."""

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from commsched import __version__, files
from commsched.errors import CommschedError
from commsched.kernels.device import gpus
from commsched.lab.bench import gpu
from commsched.lab.bench.codecs import PARTITION
from commsched.lab.validate.cells import SLEEP, ValidationCell
from commsched.lab.validate.fabrics import GPU
from commsched.lab.validate.main import ValidationRequest, validate
from commsched.lab.validate.report import bars
from commsched.lab.validate.report import measured as predicted_and_measured
from commsched.lab.validate.session import Say
from commsched.lab.validate.table import FailedRow, Row, ValidationRow
from commsched.run.doctor import DIRECT, ucx_words
from commsched.run.job import launcher
from commsched.run.job import start as job

FORMAT = "commsched-gpu/1"
NETS = ("vgg16", "bert-base", "gpt2")  # whose predicted and measured steps are compared
METHODS = ("ring+dense", "native+dense", "ring+fp16")
LANES = (2, 4)  # ranks that share the GPUs
SECONDS, QUICK_SECONDS = 20.0, 8.0  # of a calibration
LIMIT = 300.0  # s for the messages

Document = dict[str, Any]


class GpuBar(NamedTuple):
    """A number and its bar."""

    what: str
    value: float
    bar: float
    least: bool  # True: `bar` is a lower limit; False: an upper one

    @property
    def met(self) -> bool:
        """Tell whether the value keeps the bar."""
        return self.value >= self.bar if self.least else self.value <= self.bar


class GpuReportOptions(NamedTuple):
    """Options of the report."""

    numel: int = gpu.NUMEL
    repeats: int = 10
    codecs: list[str] | None = None
    quick: bool = False  # one net, shorter calibrations


def measured(folder: Path, options: GpuReportOptions, say: Say) -> Document:
    """Measure codecs, messages and steps; keep gpu.json and the files of its parts in `folder`.

    A part that fails is left out, with its reason under "failed". Finished steps in the folder
    are not run again.
    """
    gpus()
    files.make_folder(folder)
    found: Document = {"format": FORMAT, "date": time.strftime("%Y-%m-%d"), "versions": versions()}
    parts: dict[str, Callable[[], list[Document]]] = {
        "codecs": lambda: codec_rows(options, say),
        "messages": lambda: [messages(folder, "", ())],
    }
    ucx = ucx_words()
    if ucx:
        parts["messages over UCX"] = lambda: [messages(folder, "UCX", (*ucx, *DIRECT))]
    for lanes in LANES:
        parts[f"steps of {lanes} ranks"] = partial(_steps, folder, lanes, options, say)
    found |= {"codecs": [], "messages": [], "steps": [], "failed": {}}
    for name, part in parts.items():
        try:
            found[name.split()[0]] += part()
        except CommschedError as error:
            found["failed"][name] = str(error)
            say(f"{name}: {error}")
        found["bars"] = [each._asdict() | {"met": each.met} for each in asked(found)]
        files.write(folder / "gpu.json", found)
    return found


def codec_rows(options: GpuReportOptions, say: Say) -> list[Document]:
    """Measure all codecs; return plain data."""
    rows = []
    for name in gpu.chosen(options.codecs):
        row = gpu.row(name, options.numel, options.repeats)
        say(f"{name}: {row.of_copy:.1%} of a copy")
        times = {"seconds": row.seconds._asdict(), "copy": row.copy._asdict()}
        rows.append({**row._asdict(), **times, "of_copy": row.of_copy})
    gpu.give_back()  # other ranks need the GPU's memory
    return rows


def messages(folder: Path, over: str, options: Sequence[str]) -> Document:
    """Measure messages between two ranks; over: name of the transport set by mpiexec's options."""
    path = folder / f"messages{over.lower()}.json"
    command = ("bench", "buffers", "--device", "cuda", "-o", str(path))
    job.commsched(2, command, LIMIT, quiet=True, options=options)
    told = files.parse(files.read_text(path), str(path))
    return {"over": over, **told}


def _steps(folder: Path, lanes: int, options: GpuReportOptions, say: Say) -> list[Document]:
    """Return predicted and measured steps of ranks that share the GPUs."""
    nets = NETS[:1] if options.quick else NETS
    wanted = ValidationRequest(
        parts=[
            [ValidationCell(f"1x{lanes}-{GPU}", n, SLEEP, 1.0, m) for n in nets for m in METHODS]
        ],
        seconds=QUICK_SECONDS if options.quick else SECONDS,
    )
    rows = validate(wanted, folder / f"{lanes}-ranks", say, lambda row, _: say(_told(row)))
    for row in rows:
        if isinstance(row, FailedRow):
            raise CommschedError(f"{row.cell}: {row.why}")
    return [msgspec.to_builtins(row) | {"error": row.error} for row in predicted_and_measured(rows)]


def _told(row: Row) -> str:
    error = f"predicted {row.error:+.1%} off" if isinstance(row, ValidationRow) else "failed"
    return f"{row.ranks} ranks, {row.net} {row.method}: {error}"


def asked(found: Mapping[str, Any]) -> list[GpuBar]:
    """Return the bars for everything that a document contains."""
    rows = {row["codec"]: row for row in found["codecs"]}
    judged = []
    for name, row in rows.items():
        if row["asked"] is not None and name != PARTITION:
            judged.append(GpuBar(f"{name}, of a copy", row["of_copy"], row["asked"], True))
        extra = row["extra"] / (4 * row["numel"])
        judged.append(GpuBar(f"{name}, extra memory, of the gradient", extra, gpu.EXTRA, False))
    if PARTITION in rows and gpu.SELECTION in rows:
        spent, whole = (rows[n]["seconds"]["median"] for n in (PARTITION, gpu.SELECTION))
        what = f"{PARTITION}, of {gpu.SELECTION}'s time"
        judged.append(GpuBar(what, spent / whole, gpu.ASKED[PARTITION], False))
    for message in found["messages"]:
        judged.append(GpuBar("staged message, of a copy", message["of_copy"], gpu.STAGED, True))
        if message["of_staged"] is not None:
            judged.append(GpuBar("pointers, of staged", message["of_staged"], gpu.POINTED, True))
    steps = [{key: row[key] for key in row if key != "error"} for row in found["steps"]]
    for bar in bars(msgspec.convert(steps, list[ValidationRow])):
        limits = (bar.least, True), (bar.most, False)
        judged += [GpuBar(bar.what, bar.value, x, low) for x, low in limits if np.isfinite(x)]
    return judged


def versions() -> dict[str, str]:
    """Return the names and versions of the GPU, its driver, and the libraries."""
    from commsched.kernels.cuda import timing

    names = ("mpi4py", "libucx-cu13", "nvidia-nccl-cu13")
    known = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return {
        **timing.versions(),
        "NumPy": np.__version__,
        "MPI": " ".join(launcher.library().splitlines()[0].split()),
        **{name: known[name] for name in names if name in known},
        "commsched": __version__,
    }


def read(path: Path) -> Document:
    """Read a document that `bench gpu` has written."""
    found = files.parse(files.read_text(path), str(path))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CommschedError(f"{path}: not a file of format {FORMAT!r}, as `bench gpu` writes")
    return found


def lines(found: Mapping[str, Any]) -> Sequence[str]:
    """Return a line for each bar, met or missed, and for each failed part."""
    told = [
        f"{'met   ' if bar['met'] else 'MISSED'} {bar['what']}: {bar['value']:.4g}"
        f" ({'at least' if bar['least'] else 'at most'} {bar['bar']:g})"
        for bar in found["bars"]
    ]
    return told + [f"FAILED {name}: {why}" for name, why in found["failed"].items()]
