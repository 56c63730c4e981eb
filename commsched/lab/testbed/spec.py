"""The shape of a testbed: hosts, lanes per host, and the rate of every host's port."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commsched import quantity
from commsched.errors import CommschedError
from commsched.quantity import Quantity
from commsched.units import count

MOST_HOSTS = 64
MOST_LANES = 256
# Below, one jumbo frame lasts a second; above, no processor forwards that much.
LEAST_RATE, MOST_RATE = 0.1e6 / 8, 100e9 / 8  # B/s
UNITS = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}  # B/s
PORT = Quantity(kind=quantity.RATE, needs_unit=True)
RATE = "1gbit"  # default rate
ALLOWED = "allowed is 100kbit to 100gbit, such as 200mbit"


@dataclass(frozen=True, slots=True)
class Spec:
    """A testbed: ranks 0..lanes-1 live on h0, the next on h1, and so on."""

    lanes: int
    rates: tuple[float, ...]  # B/s of each host's port, in each direction

    def __post_init__(self) -> None:
        _check_count("hosts", self.hosts, MOST_HOSTS)
        _check_count("lanes", self.lanes, MOST_LANES)
        for rate in self.rates:
            _check_rate(f"rate of {rate} bytes per second", rate)

    @classmethod
    def of(cls, hosts: int, lanes: int, rates: Sequence[str] = ()) -> "Spec":
        """Read rates such as `200mbit` for all hosts and `h3=50mbit` for one."""
        _check_count("hosts", hosts, MOST_HOSTS)
        return cls(lanes, _rates(rates, hosts))

    @property
    def hosts(self) -> int:
        return len(self.rates)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the host names."""
        return tuple(f"h{i}" for i in range(self.hosts))

    @property
    def ranks(self) -> int:
        return self.hosts * self.lanes

    def __str__(self) -> str:
        common = max(self.rates, key=self.rates.count)
        others = [
            f", {name} {rate_text(rate)}"
            for name, rate in zip(self.names, self.rates, strict=True)
            if rate != common
        ]
        size = f"{count(self.hosts, 'host')} x {count(self.lanes, 'lane')}"
        return f"{size}, {rate_text(common)}{''.join(others)}"


def rate_text(rate: float) -> str:
    """Format B/s as in `200mbit`."""
    unit = next((u for u in ("gbit", "mbit") if rate >= UNITS[u]), "kbit")
    return f"{rate / UNITS[unit]:.6g}{unit}"


def parse_rate(text: str) -> float:
    """Read `200mbit` or `0.2 Gbit/s` as B/s."""
    rate = PORT.parsed(text, "rate of a port")
    _check_rate(f"rate {text!r}", rate)
    return float(round(rate))  # the kernel counts whole bytes per second


def _rates(words: Iterable[str], hosts: int) -> tuple[float, ...]:
    common, own = parse_rate(RATE), dict[str, float]()
    said: set[str] = set()
    names = [f"h{i}" for i in range(hosts)]
    for word in words:
        host, equals, text = word.partition("=")
        if equals and host not in names:
            raise CommschedError(f"rate {word!r}: no host {host!r}; hosts are h0 to {names[-1]}")
        key = host if equals else "all hosts"
        if key in said:
            raise CommschedError(f"rate {word!r}: the rate of {key} is given twice")
        said.add(key)
        if equals:
            own[host] = parse_rate(text)
        else:
            common = parse_rate(word)
    return tuple(own.get(name, common) for name in names)


def _check_count(what: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise CommschedError(f"{what}: must be 1 to {most}, got {count}")


def _check_rate(what: str, rate: float) -> None:
    if not (math.isfinite(rate) and LEAST_RATE <= rate <= MOST_RATE):
        raise CommschedError(f"{what}: out of range; {ALLOWED}")
