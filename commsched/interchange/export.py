"""The interface of an export format: it writes the tasks of all ranks into a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.interchange.tasks import Task
from commsched.registry import Registry


@dataclass(frozen=True, slots=True)
class Export:
    """An export format: `write` takes the tasks by rank, a folder, and a name; it returns files."""

    title: str
    write: Callable[[Sequence[Sequence[Task]], Path, str], list[Path]]
    check: Callable[[], None] = lambda: None  # raises an error if a library is missing
    collectives: bool = False  # the format can express an all-reduce as one task


EXPORTS: Registry[Export] = Registry("export format", "commsched.interchange.exports")
