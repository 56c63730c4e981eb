"""Parameters behind a codec's name, such as 0.01 in `topk:0.01`, with one spelling per number."""

import math
import re

from commsched.errors import CommschedError

FORGET = "forget"  # the last parameter: unsent values are not added to the next gradient
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def at_most(given: list[str], allowed: int) -> None:
    """Refuse more parameters than allowed."""
    if len(given) > allowed:
        raise CommschedError(f"at most {allowed} parameters, got {len(given)}")


def forgets(given: list[str]) -> tuple[list[str], bool]:
    """Return the parameters without a last `forget`, and whether it stood there."""
    found = given[1:] != [] and given[-1] == FORGET
    return (given[:-1] if found else given), found


def share(text: str, what: str = "the share that is kept") -> float:
    """Read a number in (0, 1], such as 0.01 or 1%."""
    percent = text.endswith("%")
    value = number(text.removesuffix("%"), what, "in (0, 1]") / (100 if percent else 1)
    if not 0.0 < value <= 1.0:
        raise CommschedError(f"{what} must be in (0, 1], got {text!r}")
    return value


def number(text: str, what: str, allowed: str = "a number of at least 0") -> float:
    """Read a finite number of at least 0, such as 0.01 or 1e-5."""
    value = float(text) if NUMBER.fullmatch(text) else math.inf
    if not math.isfinite(value):
        raise CommschedError(f"{what} must be {allowed}, got {text!r}")
    return value


def whole(text: str, what: str, low: int, high: int) -> int:
    """Read a whole number in [low, high]."""
    good = text.isascii() and text.isdecimal() and len(text) < 10
    if not (good and low <= int(text) <= high):
        raise CommschedError(f"{what} must be a whole number from {low} to {high}, got {text!r}")
    return int(text)


def choice(text: str, what: str, allowed: tuple[str, ...]) -> str:
    """Read one of some words."""
    if text not in allowed:
        raise CommschedError(f"{what} must be one of {', '.join(allowed)}; got {text!r}")
    return text


def written(value: float) -> str:
    """Return the one way in which a number is written in a name."""
    return repr(value).removesuffix(".0")
