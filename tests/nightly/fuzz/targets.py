"""Good files of every kind, and every command and reader that takes one."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commsched import files, training_log
from commsched.cli.main import main
from commsched.exchange import recorded_gradients
from commsched.lab.bench import gpu_report
from commsched.lab.convergence import table as convergence
from commsched.lab.reproduce import paper
from commsched.lab.validate import table as validation
from commsched.net import file as net_file
from commsched.timeline import file as timeline_file
from commsched.timeline import parts
from commsched.timeline.header import RunHeader
from commsched.train import packing, trials
from tests.nightly.fuzz import mutations
from tests.support.jobs import ROOT

TRACES = ROOT / "traces"
QUICK = "--time-limit 0"
PROFILED = 200  # events of a recorded trace


@dataclass(frozen=True)
class Target:
    """What reads a file `{file}`; the others are good ones."""

    kind: str  # of file
    words: str = ""  # of a command
    reader: Callable[[Path], object] | None = None
    weight: float = 4
    mpi: bool = False  # a command of MPI, which begins once in a process

    @property
    def name(self) -> str:
        """A name that a case file keeps."""
        return self.words or f"reader of {self.kind}"


COMMANDS = (
    ("net", "show {file}", 4),
    ("net", "show {file} --json", 2),
    ("net", f"plan {{file}} --machine {{machine}} -o {{out}}.json {QUICK}", 6),
    ("net", f"plan {{file}} --machine {{machine}} -o {{out}}.json {QUICK} --strategy 1f1b", 2),
    ("machine", "show {file}", 4),
    ("machine", f"plan {{net}} --machine {{file}} -o {{out}}.json {QUICK}", 5),
    ("machine", "price 1000 --machine {file} --method ring+dense,zen,native+dense", 5),
    ("machine", "price 1000 --machine {file} --strategy daso --compute 40", 2),
    ("plan", "show {file}", 6),
    ("plan", "show {file} --json", 2),
    ("plan", "show {plan} --diff {file}", 2),
    ("plan", "simulate {file} --steps 3", 8),
    ("plan", "simulate {file} --steps 2 -o {out}.json --json", 4),
    ("predicted", "show {file}", 4),
    ("predicted", "compare {file} {measured}", 5),
    ("predicted", "compare {predicted} {file}", 3),
    ("predicted", "plot {file} -o {out}.html", 4),
    ("predicted", "plot {file} -o {out}.svg", 1),
    ("measured", "show {file} --json", 4),
    ("measured", "compare {predicted} {file} --json", 5),
    ("measured", "simulate {plan} --steps 3 --replay {file}", 4),
    ("measured", "plot {predicted} {file} -o {out}.html --step 1", 3),
    (
        "gradients",
        "plan {net} --machine {machine} -o {out}.json --allow topk:0.01 --max-error 90%"
        f" --gradients {{file}} {QUICK}",
        8,
    ),
    ("part", "show {file}", 2),
    ("part", "compare {predicted} {file}", 2),
    *(("plan", f"export {{file}} --to {to} -o {{out}}", 2) for to in ("csv", "goal")),
    ("study", "sweep {file} -o {out}.csv", 2),
    ("table", "plot {file} --x nodes --y step -o {out}.svg", 1),
    ("profile", "import {file} -o {out}.json", 4),
    ("packed profile", "import {file} -o {out}.json", 2),
)
# A single process is a job of one rank.
JOBS = (
    ("own", "run {file} -o {out}.json --steps 2 --timeout 20", 2),
    ("plan", "run {file} -o {out}.json --steps 2 --timeout 20", 0.5),  # for more ranks
    ("learnt", "train --net mlp:8:1 --plan {file} --batch 8 --steps 2 --timeout 20", 2),
    ("trials", "train --net mlp:8:1 --plan {learnt} --steps 2 --sweep {file} --together", 1),
    ("machine", "train --net mlp:8:1 --machine {file} --batch 8 --steps 2 --timeout 20", 1),
    ("manifest", "train --net mlp --checkpoint {folder} --resume --steps 2", 1),
    ("net", "demo --net {file} -o {out} --ranks 1 --steps 3 --scale 0.01", 0.1),
)
READERS: Mapping[str, Callable[[Path], object]] = {
    "log": training_log.read,
    "trials": trials.read,
    "reproduction": paper.read,
    "convergence": convergence.read,
    "validation": validation.read,
    "gpu": gpu_report.read,
    "checkpoint": lambda path: packing.unpacked(files.read_bytes(path), str(path)),
    "part": lambda path: parts.read_parts(path.with_name(path.name.partition(".rank0")[0])),
}
TARGETS: tuple[Target, ...] = (
    *(Target(kind, words, weight=weight) for kind, words, weight in COMMANDS),
    *(Target(kind, words, weight=weight, mpi=True) for kind, words, weight in JOBS),
    *(Target(kind, reader=reader, weight=3) for kind, reader in READERS.items()),
)
MUTATIONS = {kind: mutations.NPZ for kind in ("gradients", "checkpoint")} | {
    kind: mutations.ANYTHING for kind in ("packed profile", "study", "table")
}
SLOW = JOBS[-1][1]  # it starts other processes
SUFFIXES = {
    "gradients": ".npz",
    "checkpoint": ".npz",
    "part": ".json.rank0.jsonl",
    "log": ".jsonl",
    "study": ".toml",
    "table": ".csv",
    "validation": ".jsonl",
    "packed profile": ".json.gz",
}


def good_files(folder: Path) -> dict[str, Path]:
    """Make a good file of every kind."""
    found = {
        kind: folder / f"{kind}{SUFFIXES.get(kind, '.json')}"
        for kind in dict.fromkeys(target.kind for target in TARGETS)
    }
    found["trained"] = folder / "trained.json"
    commands = (
        "models --transformer layers=1,hidden=8,heads=2,sequence=4,vocabulary=40 -o {net}",
        "machine new --nodes 2 --gpus 2 --gpu a100 --net 25Gbit/s -o {machine}",
        f"plan {{net}} --machine {{machine}} -o {{plan}} {QUICK}",
        f"plan {{net}} --machine {{machine}} --nodes 1 --lanes 1 -o {{own}} {QUICK}",
        "profile mlp:8:1 --batch 8 -o {trained}",
        f"plan {{trained}} --machine {{machine}} --nodes 1 --lanes 1 -o {{learnt}} {QUICK}",
        "sweep --net {net} --machine {machine} --nodes 1,2 --planner greedy -o {table}",
        "simulate {plan} --steps 3 -o {predicted} --ranks 2",
        "simulate {plan} --steps 3 -o {measured} --ranks 2",
    )
    for words in commands:
        assert main(words.format(**found).split()) == 0, words
        if words.startswith("profile"):
            _settle(found["trained"])
    measured = json.loads(found["measured"].read_text())
    measured["otherData"] |= {"kind": "measured", "meta": {"warnings": ["a warning"]}}
    contents: dict[str, Any] = {"measured": measured}
    contents |= {"reproduction": _trace("reproduce/daso.json")}
    contents |= {"convergence": _trace("convergence/text/table.json")}
    contents |= {"gpu": _gpu()}
    contents |= {
        "trials": {"format": "commsched-trials/1", "plan": "0" * 64, "made": {"--seed": 1}}
    }
    contents |= {"manifest": _manifest(), "profile": _profile()}
    for kind, data in contents.items():
        found[kind].write_text(json.dumps(_shorter(data)))
    found["packed profile"].write_bytes(gzip.compress(found["profile"].read_bytes()))
    net = net_file.read(found["net"])
    rows = {name: np.ones((4, t.numel), np.float32) for name, t in net.tensors.items()}
    recorded_gradients.write(found["gradients"], rows)
    values = {"step": 1, "w": np.ones(3, np.float32), "pair": (1, {"a": 2.0, "b": np.arange(4)})}
    found["checkpoint"].write_bytes(packing.packed(values))
    found["log"].write_bytes(_log())
    machine, net = json.dumps(str(found["machine"])), json.dumps(str(found["net"]))
    found["study"].write_text(f'net = [{net}]\nmachine = [{machine}]\nplanner = ["greedy"]\n')
    _validation(found["validation"])
    _part(found["part"], timeline_file.read(found["measured"]))
    return found


def _settle(path: Path) -> None:
    """Give each layer of a measured net equal seconds, so that a seed gives equal files."""
    net = net_file.read(path)
    layers = (replace(layer, forward=1e-5, backward=2e-5) for layer in net.layers)
    net_file.write(path, replace(net, layers=tuple(layers)))


def _trace(name: str) -> Any:
    return json.loads((TRACES / name).read_text())


def _shorter(data: Any) -> Any:
    """Keep the first rows of long lists: mutations of each row are alike."""
    if isinstance(data, dict):
        return {key: _shorter(value) for key, value in data.items()}
    return [_shorter(value) for value in data[:PROFILED]] if isinstance(data, list) else data


def _profile() -> Any:
    return json.loads(gzip.decompress((TRACES / "imported" / "gpt-ddp.json.gz").read_bytes()))


def _gpu() -> Any:
    return {"format": gpu_report.FORMAT, "codecs": [], "messages": [], "steps": [], "failed": {}}


def _manifest() -> Any:
    digests = {"plan": "0" * 64, "files": ["1" * 64]}
    return {"format": "commsched-checkpoint/1", "step": 2, "made": {}, "scalars": {}, **digests}


def _log() -> bytes:
    lines: list[dict[str, Any]] = [
        {"type": "training", "net": "mlp", "strategy": "sync", "plan": "0" * 64, "ranks": 1},
        {"type": "step", "step": 0, "loss": 1.0, "accuracy": 0.5, "seconds": 1.0, "sent_bytes": 1},
        {"type": "held out", "step": 0, "loss": None, "accuracy": 0.5},
    ]
    lines[0] |= {"format": "commsched-log/1", "made": {"--seed": 1}}
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _validation(path: Path) -> None:
    about = {"bed": "1x2-shared", "net": "cnn:3", "compute": "spin", "ratio": 1.0}
    about |= {"method": "zen", "machine": "0" * 12, "cores": 2}
    seconds = {"predicted": 1.0, "measured": 1.1, "spread": 0.1, "stolen": 0.0, "nbytes": 4.0}
    pairs: dict[str, Any] = {"exchanges": ((1.0, 1.1),), "interval": (0.9, 1.2)}
    one = validation.ValidationRow(**about, **seconds, **pairs, plan="0" * 64)  # type: ignore
    best = validation.MeasuredPlan(
        names=("best",), compresses=False, predicted=1.0, measured=(1.0,)
    )
    decided = validation.DecisionRow(**about | {"method": ""}, plans=(best,))  # type: ignore
    validation.write(path, (one, decided))


def _part(path: Path, timeline: Any) -> None:
    base = path.with_name(path.name.partition(".rank0")[0])
    names = {"streams": timeline.streams, "names": timeline.names}
    header = parts.PartHeader(plan_hash="0" * 64, ranks=1, rank=0, meta=RunHeader(), **names)
    writer = parts.PartWriter(base, header)
    writer.append(span for span in timeline if span.rank == 0)
    writer.close()


def run(target: Target, file: Path, good: Mapping[str, Path], folder: Path) -> int:
    """Let a target read a file in this process; return its exit status."""
    if target.reader is not None:
        target.reader(file)
        return 0
    return main(words_of(target, file, good, folder))


def words_of(target: Target, file: Path, good: Mapping[str, Path], folder: Path) -> list[str]:
    """Return the words of a target's command."""
    names = {kind: str(path) for kind, path in good.items() if " " not in kind}
    names |= {"file": str(file), "folder": str(file.parent), "out": str(folder / "out")}
    return [word.format(**names) for word in target.words.split()]
