"""A progress bar for work that takes a while; nothing is drawn where no terminal shows it."""

from typing import NoReturn

from tqdm import tqdm

QUIET = 2.0  # s of work that shows no progress


def progress(total: int, unit: str) -> "tqdm[NoReturn]":
    """Return a bar that appears after `QUIET` seconds; use it as a context, and `update` it."""
    return tqdm(total=total, unit=unit, delay=QUIET, disable=None, leave=False)
