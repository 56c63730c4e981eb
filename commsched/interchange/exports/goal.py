"""Export to GOAL text for LogGOPSim and ATLAHS: lines of `calc`, `send`, `recv` and `requires`.

Source: the grammar in the documentation of LogGOPSim's txt2bin, spcl.ethz.ch. Work is in ns. Each
rank uses a single cpu: LogGOPSim's cpus have separate clocks, and a line that requires a line of
another cpu begins before that line ends (LogGOPSim.cpp, commit 76451de).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from commsched import files
from commsched.interchange.export import EXPORTS, Export
from commsched.interchange.tasks import Task, TaskKind


def write(ranks: Sequence[Sequence[Task]], folder: Path, name: str) -> list[Path]:
    """Write one file for all ranks."""
    path = folder / f"{name}.goal"
    with files.writing(path) as file:
        file.write(f"num_ranks {len(ranks)}\n".encode())
        for rank, tasks in enumerate(ranks):
            lines = "\n".join(line for task in tasks for line in _lines(task))
            file.write(f"\nrank {rank} {{\n{lines}\n}}\n".encode())
    return [path]


def _lines(task: Task) -> Iterator[str]:
    label = f"l{task.number + 1}"
    if task.kind is TaskKind.WORK:
        yield f"{label}: calc {round(task.seconds * 1e9)}"
    elif task.kind is TaskKind.SEND:
        yield f"{label}: send {task.nbytes}b to {task.peer} tag {task.tag}"
    else:
        yield f"{label}: recv {task.nbytes}b from {task.peer} tag {task.tag}"
    for number in task.after:
        yield f"{label} requires l{number + 1}"


EXPORTS.add("goal")(Export("GOAL text for LogGOPSim and ATLAHS", write))
