"""Quantities as people write them: `25 Gbit/s`, `3.1 GB/s`, `28 us`, `5%`, `16GB`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

from commsched.errors import CommschedError
from commsched.units import nbytes, significant

DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
WRITTEN = re.compile(
    r"\s*(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9.+-].*?)?\s*",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, eq=False)
class QuantityKind:
    """A kind of quantity: its units, each with its size in the unit used inside."""

    what: str  # with its article
    example: str
    units: Mapping[str, float]

    @cached_property
    def folded(self) -> dict[str, float | None]:
        """Return the units in lower case; None if two differ in case alone, as Gb/s and GB/s."""
        found: dict[str, float | None] = {}
        for unit, scale in self.units.items():
            key = unit.lower()
            found[key] = scale if found.get(key, scale) == scale else None
        return found

    def scale(self, unit: str) -> float | None:
        """Return the size of a unit; None for a unit of another kind, or one of two meanings."""
        bare = unit.replace("\u03bc", "u").replace("\u00b5", "u")  # Greek mu, and the micro sign
        bare = re.sub(r"\s*/\s*", "/", bare)
        return self.units.get(bare, self.folded.get(bare.lower()))


def _prefixed(names: tuple[str, ...], size: float, binary: bool = False) -> dict[str, float]:
    prefixes = DECIMAL | BINARY if binary else DECIMAL
    return {p + name: scale * size for name in names for p, scale in prefixes.items()}


BYTES = ("B", "byte", "bytes")
SIZE = QuantityKind(
    "a size",
    "25MB",
    _prefixed(BYTES, 1.0, binary=True) | {p: s for p, s in (DECIMAL | BINARY).items() if p},
)
RATE = QuantityKind(
    "a rate",
    "25 Gbit/s",
    _prefixed(("bit", "bits", "bit/s", "bits/s", "b/s", "bps"), 1 / 8, binary=True)
    | _prefixed(tuple(f"{name}{per}" for name in BYTES for per in ("/s", "ps")), 1.0, binary=True)
    | {"gbps": 1e9 / 8, "mbps": 1e6 / 8, "kbps": 1e3 / 8},
)
TIME = QuantityKind(
    "a time",
    "28 us",
    {
        **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
        **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
        **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), 1e-6),
        **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
        **dict.fromkeys(("min", "minute", "minutes"), 60.0),
        **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    },
)
SHARE = QuantityKind("a share", "5%", {"%": 0.01, "percent": 0.01})
NUMBER = QuantityKind("a number", "0.5", {"%": 0.01})
WORK = QuantityKind("a number of operations", "1.5 Gflop", _prefixed(("flop", "flops"), 1.0))
SPEED = QuantityKind(
    "a speed", "125 Tflop/s", _prefixed(("flop/s", "flops/s", "flops", "flop", "FLOPS"), 1.0)
)
LENGTH = QuantityKind(
    "a length",
    "84mm",
    {
        **dict.fromkeys(("in", "inch", "inches"), 1.0),
        **{"cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72},
    },
)
KINDS = (SIZE, RATE, TIME, SHARE, WORK, SPEED, LENGTH)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """The written form of an option or field: its kind, and the unit of a plain number."""

    kind: QuantityKind
    unit: str = ""  # of a number without a unit; "": the unit used inside
    least: float = 0.0  # allowed, in the unit used inside
    most: float = inf
    above: bool = False  # more than `least`
    # A number that is smaller, but not 0, or larger must be written with its unit.
    believed_from: float = 0.0
    believed: float = inf
    needs_unit: bool = False
    scale: float = field(default=0.0)  # of a number without a unit

    def __post_init__(self) -> None:
        scale = self.scale or (self.kind.units[self.unit] if self.unit else 1.0)
        object.__setattr__(self, "scale", scale)

    def __call__(self, text: str) -> float:
        """Read a quantity, for a caller that names the option itself."""
        return self.read(text, "the value")

    def read(self, text: str, name: str) -> float:
        """Read a quantity in the unit used inside; errors name the option or field."""
        return self.checked(self.parsed(text, name), name, text)

    def checked(self, value: float, name: str, text: str) -> float:
        """Return a value, in the unit used inside, if it is allowed; `text`: as it was written."""
        low = value <= self.least if self.above else value < self.least
        if low or value > self.most or not isfinite(value):
            raise CommschedError(f"{name} must be {self.allowed}; got {text}")
        return value

    def parsed(self, text: str, name: str) -> float:
        """Read a quantity of any size."""
        found = WRITTEN.fullmatch(text)
        number, unit = (float(found[1]), found[2]) if found else (inf, None)
        scale = self.scale if unit is None else self.kind.scale(unit)
        if found is None or scale is None or (unit is None and self.needs_unit):
            raise self._refused(text, name, unit or "")
        value = _product(number, scale)
        if unit is not None:
            return value
        doubted = value > self.believed or 0 < value < self.believed_from
        if doubted and value <= self.most and isfinite(value):  # beyond, no unit helps
            raise CommschedError(self._doubt(text, name, value))
        return value

    @property
    def allowed(self) -> str:
        """Return the allowed range in words."""
        low = f"{'more than' if self.above else 'at least'} {self.shown(self.least)}"
        return (
            f"{low} and at most {self.shown(self.most)}" if self.most < inf else f"finite and {low}"
        )

    def shown(self, value: float) -> str:
        """Write a value with the unit that a plain number would have."""
        number = f"{significant(value / self.scale):.12g}"
        if self.kind is SHARE:
            return f"{significant(value * 100):.12g}%"
        return f"{number} {self.unit}" if self.unit else number

    def _refused(self, text: str, name: str, unit: str) -> CommschedError:
        two = self.kind.folded.get(unit.lower(), 0.0) is None
        more = "; b may be bits or bytes: write bit/s or B/s" if two else ""
        return CommschedError(
            f"{name} is {self.kind.what}, such as {self.kind.example}; got {text!a}{more}"
        )

    def _doubt(self, text: str, name: str, value: float) -> str:
        meant = self.shown(value)
        other = ""
        if self.kind is SHARE:
            likely = value / 100 if value > self.believed else value * 100
            other = f"{self.shown(likely)}, or "
        elif self.kind is SIZE and self.scale > 1 and value > self.believed:
            other = f"{nbytes(value / self.scale)}, or "
        return f"{name} {text} would be {meant}: write {other}{meant} if you mean it"


def _product(number: float, scale: float) -> float:
    """Multiply, but divide for a power of ten below 1: 28 us is 28 / 10^6 s, the nearest number."""
    inverse = round(1 / scale) if 0 < scale < 1 else 0
    return number / inverse if inverse and 1 / inverse == scale else number * scale


def text(kind: QuantityKind, value: float, unit: str) -> str:
    """Write a value with a unit so that it is read as the same value, to 12 digits."""
    return f"{significant(value / kind.units[unit]):.12g} {unit}"
