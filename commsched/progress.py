"""Progress of work that takes a while, on stderr and only if a terminal shows it."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from commsched.terminal import printable, screen

T = TypeVar("T")

QUIET = 2.0  # s of work that shows no progress
BEAT = 0.5  # s between two pictures of work that has no steps

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


def progress(total: int, unit: str, what: str = "") -> Any:
    """Return tqdm's bar, which appears after `QUIET` seconds; a context with `update`."""
    return _tqdm()(
        total=total,
        unit=unit,
        desc=printable(what),
        delay=QUIET,
        disable=None,
        leave=False,
        file=screen(),
    )


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show how long work without a known end takes, and what it does, after `QUIET` seconds.

    Yields a function that takes the name of the current work.
    """
    if not screen().isatty():
        yield lambda _: None
        return
    what = printable(what)
    bar = _tqdm()(
        desc=what,
        bar_format="{desc} ({elapsed})",
        delay=QUIET,
        leave=False,
        file=screen(),
    )
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            bar.update()

    def say(text: str) -> None:
        bar.set_description_str(f"{what}: {printable(text)}", refresh=False)

    with bar:
        drawing = threading.Thread(target=beat, daemon=True)
        drawing.start()
        try:
            yield say
        finally:
            over.set()
            drawing.join()


def tell(sentence: str) -> None:
    """Print a line on stderr, above the progress display."""
    _tqdm().write(printable(sentence), file=screen())


def each(rows: Iterable[T], what: str) -> Iterator[T]:
    """Yield rows; each one may take a while to make."""
    waiting = iter(rows)
    while True:
        with working(what):
            found = list(islice(waiting, 1))
        if not found:
            return
        yield from found


def progress_bar(what: str, total: int) -> Callable[[int, str], None]:
    """Return a function that draws a bar of steps, from the number done and a word on the last one.

    Nothing is drawn before the first step is done; the pace leaves out that warm-up step. The last
    step is always drawn, however short the work, and ends the line.
    """
    tqdm, drawn = _tqdm(), None

    def show(done: int, word: str) -> None:
        nonlocal drawn
        if drawn is None:
            drawn = tqdm(
                total=total, initial=done, unit="step", desc=printable(what), file=screen()
            )
        drawn.set_postfix_str(printable(word), refresh=False)
        drawn.update(done - drawn.n)
        if done == total:
            drawn.close()

    return show


def _tqdm() -> Any:
    """Import tqdm only where it is used, as ranks show nothing, and make its lock.

    An interrupt while a bar makes the lock would leave a traceback.
    """
    from tqdm import tqdm

    tqdm.get_lock()
    return tqdm


def _parent(process: Path) -> Path:
    """Return the folder in /proc of a process's parent."""
    lines = process.joinpath("status").read_text().splitlines()
    (parent,) = (line.split()[1] for line in lines if line.startswith("PPid:"))
    return process.parent / parent
