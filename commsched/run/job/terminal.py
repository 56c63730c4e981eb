"""Draw progress if a terminal shows it: launchers pass on the ranks' output through pipes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

LAUNCHERS = ("mpiexec", "mpirun", "hydra", "prte", "orte")  # begin the names of their processes
TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def progress_visible() -> bool:
    """Tell whether stderr ends on a terminal: this process's stderr, or its launcher's.

    If launchers have started each other, the outermost launcher writes the output. A launcher on
    another host is not found.
    """
    if sys.stderr.isatty():
        return True
    try:
        launcher = _parent(Path("/proc/self"))
        while launcher.joinpath("comm").read_text().startswith(LAUNCHERS):
            if str(launcher.joinpath("fd/2").readlink()).startswith(TERMINALS):
                return True
            launcher = _parent(launcher)
    except OSError:  # another user's process, or it has just ended
        pass
    return False


def progress_bar(what: str, total: int) -> Callable[[int, str], None]:
    """Return a function that draws a bar of steps, from the number done and a word on the last one.

    Nothing is drawn before the first step is done; the pace leaves out that warm-up step. The last
    step is always drawn, however short the work, and ends the line.
    """
    from tqdm import tqdm

    drawn: tqdm[NoReturn] | None = None

    def show(done: int, word: str) -> None:
        nonlocal drawn
        if drawn is None:
            drawn = tqdm(total=total, initial=done, unit="step", desc=what)
        drawn.set_postfix_str(word, refresh=False)
        drawn.update(done - drawn.n)
        if done == total:
            drawn.close()

    return show


def _parent(process: Path) -> Path:
    """Return the folder in /proc of a process's parent."""
    lines = process.joinpath("status").read_text().splitlines()
    (parent,) = (line.split()[1] for line in lines if line.startswith("PPid:"))
    return process.parent / parent
