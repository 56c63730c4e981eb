"""Export to a CSV table with a row per task of a rank, for spreadsheets and pandas."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from commsched import files
from commsched.interchange.export import EXPORTS, Export
from commsched.interchange.tasks import Task

HEADER = ("rank", "task", "name", "kind", "step", "stream", "seconds", "bytes", "peer", "tag")


def write(ranks: Sequence[Sequence[Task]], folder: Path, name: str) -> list[Path]:
    """Write one file for all ranks; the column `after` names earlier tasks of the same rank."""
    path = folder / f"{name}.csv"
    with files.writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow((*HEADER, "after"))
        for rank, tasks in enumerate(ranks):
            rows.writerows(_row(rank, task) for task in tasks)
        text.detach()
    return [path]


def _row(rank: int, task: Task) -> tuple[object, ...]:
    there = task.peer >= 0
    return (
        rank,
        task.number,
        task.name,
        task.kind.value,
        task.step,
        task.stream,
        f"{task.seconds:.12g}",
        task.nbytes or "",
        task.peer if there else "",
        task.tag if there else "",
        " ".join(map(str, task.after)),
    )


EXPORTS.add("csv")(Export("a table with a row per message or operation", write))
