"""The known name that somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the end of a sentence that names the most similar name; empty if none is similar."""
    found = most_similar(name, known, least)
    return f"; nearest: {found!r}" if found else ""


def most_similar(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the most similar name; "" if none reaches the similarity `least`, in [0, 1].

    Case, dots, hyphens and underscores decide only between names that are equal without them.
    """
    plain: dict[str, list[str]] = {}
    for each in known:
        plain.setdefault(_plain(each), []).append(each)
    short = _plain(name)
    found = get_close_matches(short, plain, 1, least)
    found = found or [each for each in plain if len(short) > 2 and each.startswith(short)][:1]
    return get_close_matches(name, plain[found[0]], 1, 0.0)[0] if found else ""


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter not in "-_. ")
