"""The hosts and MPI on which a machine was calibrated, and the errors of its predictions there."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from commsched.errors import CommschedError
from commsched.records import NOT_NEGATIVE, check_name, normalise, unit
from commsched.units import count

MICROSECONDS = unit("us", 1e-6)
Seconds = Annotated[float, MICROSECONDS, NOT_NEGATIVE]

MOST = 2**20  # ranks or cores of a host
FACTOR = 1e6  # largest error of a prediction that a file may hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The hosts, MPI and transport of a calibration or a run."""

    hosts: tuple[str, ...]  # names, in node order
    ranks: tuple[int, ...]  # of each host
    mpi: str  # library and version
    transport: str  # such as "ch4:ofi tcp"
    cores: int  # cores that each rank may use, shared or not; the least over the ranks
    processor: str

    def __post_init__(self) -> None:
        for name in ("mpi", "transport", "processor"):
            check_name(f"fabric: {name}", getattr(self, name))
        for host in self.hosts:
            check_name("fabric: host", host)
        if not self.hosts or len(self.hosts) != len(self.ranks):
            raise CommschedError(
                f"fabric: {count(len(self.hosts), 'host')} with {len(self.ranks)} counts of ranks;"
                " at least one host, and a count for each"
            )
        if len(set(self.hosts)) != len(self.hosts):
            raise CommschedError("fabric: a host stands twice; give each host once")
        for name, number in (*(("ranks", n) for n in self.ranks), ("cores", self.cores)):
            if not 1 <= number <= MOST:
                raise CommschedError(f"fabric: {name} must be 1 to {MOST}, got {number}")

    def differences(
        self, other: "Fabric", verbs: tuple[str, str] = ("calibrated", "run")
    ) -> list[str]:
        """Describe each difference in a sentence; `verbs`: the uses of the two fabrics."""
        here, there = verbs
        found = []
        if self.ranks != other.ranks:
            found.append(f"{here} as {shape(self.ranks)}, {there} as {shape(other.ranks)}")
        moved = [(a, b) for a, b in zip(self.hosts, other.hosts, strict=False) if a != b]
        if moved:
            more = f", and {len(moved) - 1} more differ" if len(moved) > 1 else ""
            found.append(f"{here} on host {moved[0][0]}, {there} on host {moved[0][1]}{more}")
        for link, a, b in (
            ("with", self.mpi, other.mpi),
            ("over", self.transport, other.transport),
            ("with", f"{self.cores} usable cores", f"{other.cores} usable cores"),
            ("on", self.processor, other.processor),
        ):
            if a != b:
                found.append(f"{here} {link} {a}, {there} {link} {b}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A measurement that the calibration did not use for its fit, and its prediction: s."""

    name: str
    predicted: Annotated[float, MICROSECONDS]
    measured: Annotated[float, MICROSECONDS]
    computing: bool = False  # whether the ranks computed on their cores at the same time

    def __post_init__(self) -> None:
        check_name("held-out cell", self.name)
        normalise(self)
        positive = 0.0 < self.measured < inf and 0.0 < self.predicted < inf
        if not (positive and 1 / FACTOR <= self.predicted / self.measured <= FACTOR):
            raise CommschedError(
                f"held-out cell {self.name!a}: predicted and measured seconds must be finite, more"
                f" than 0 and within a factor of {FACTOR:g}, got {self.predicted:g} and"
                f" {self.measured:g}"
            )

    @property
    def error(self) -> float:
        """Return (predicted - measured) / measured."""
        return (self.predicted - self.measured) / self.measured


def shape(ranks: tuple[int, ...]) -> str:
    """Format the ranks of each node as `2 nodes x 4 ranks`."""
    nodes = count(len(ranks), "node")
    if len(set(ranks)) == 1:
        return f"{nodes} x {count(ranks[0], 'rank')}"
    more = ", ..." if len(ranks) > 8 else ""
    return f"{nodes} with {', '.join(map(str, ranks[:8]))}{more} ranks"
