"""What a format to export to gives: it writes the tasks of all ranks into a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.interchange.tasks import Task
from commsched.registry import Registry


@dataclass(frozen=True, slots=True)
class Export:
    """A format: `write` takes the tasks by rank, a folder and a name, and returns its files."""

    title: str
    write: Callable[[Sequence[Sequence[Task]], Path, str], list[Path]]
    check: Callable[[], None] = lambda: None  # refuses if a library is missing
    collectives: bool = False  # may hold an all-reduce as one task


EXPORTS: Registry[Export] = Registry("export format", "commsched.interchange.exports")
