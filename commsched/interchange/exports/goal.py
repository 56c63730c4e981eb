"""GOAL text for LogGOPSim and ATLAHS: a `calc`, `send` or `recv` per line, and what it requires.

Source: the grammar that the documentation of LogGOPSim's txt2bin states, spcl.ethz.ch. Work is in
ns. A rank has one cpu: each of LogGOPSim's cpus has a clock of its own, and what requires a line
of another cpu begins before that line is over (LogGOPSim.cpp, commit 76451de).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from commsched import files
from commsched.interchange.export import EXPORTS, Export
from commsched.interchange.tasks import Task, TaskKind


def write(ranks: Sequence[Sequence[Task]], folder: Path, name: str) -> list[Path]:
    """Write one file of all ranks."""
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
