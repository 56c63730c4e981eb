"""The known name that somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the most similar name; empty if none is similar.

    Case, and dots, hyphens and underscores, do not count.
    """
    plain = {_plain(each): each for each in known}
    found = get_close_matches(_plain(name), plain, 1)
    return f"; nearest: {plain[found[0]]!r}" if found else ""


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter not in "-_. ")
