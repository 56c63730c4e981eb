"""The machine as the cost model sees it: seconds, bytes and ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite

import numpy as np
import numpy.typing as npt

from commsched.errors import CommschedError
from commsched.machine.fabric import Fabric, HeldOut

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_RANKS = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A LogGP link class.

    L [s] = latency; o [s] = overhead, paid by sender and by receiver; G [s/B] = per_byte.
    Source: Alexandrov et al., "LogGP", SPAA 1995.
    """

    latency: float
    overhead: float
    per_byte: float
    # Measured (bytes, seconds on the wire) where one slope does not fit; ascending; empty: n G.
    points: tuple[tuple[float, float], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        _check("latency", self.latency)
        _check("overhead", self.overhead)
        _check("seconds per byte", self.per_byte)
        _check_points("points", self.points)

    def wire(self, nbytes: float | Floats) -> float | Floats:
        """Seconds that `nbytes` occupy a port: n G, or the measured curve, then its end + n G."""
        if not self.points:
            return nbytes * self.per_byte
        x, y = np.array(self.points).T
        beyond = np.maximum(np.asarray(nbytes) - x[-1], 0.0) * self.per_byte
        seconds: Floats = np.interp(nbytes, x, y) + beyond
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """Network ports of a node: the ranks of a node share them evenly."""

    per_node: int
    per_byte: float  # s/B of one port in each direction
    turn: float = 0.0  # B of one message that leave before another rank's have their turn
    source: str = ""

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise CommschedError(f"nic: ports per node must be at least 1, got {self.per_node}")
        _check("nic: seconds per byte", self.per_byte)
        _check("nic: turn", self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRate:
    """Measured codec speed on one device: seconds = fixed + s/B * bytes as uncompressed float32."""

    encode: float  # s/B
    add: float  # s/B
    decode: float  # s/B
    fixed: float = 0.0  # s per call
    fixed_add: float | None = None  # s per call of add; None: as all calls
    fixed_decode: float | None = None  # the same of decode
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("encode", "add", "decode", "fixed", "fixed_add", "fixed_decode"):
            if getattr(self, name) is not None:
                _check(f"codec: {name}", getattr(self, name))

    @property
    def per_add(self) -> float:
        """Seconds per call of add, however few bytes."""
        return self.fixed if self.fixed_add is None else self.fixed_add

    @property
    def per_decode(self) -> float:
        """Seconds per call of decode, however few bytes."""
        return self.fixed if self.fixed_decode is None else self.fixed_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes and encodes on one rank."""

    name: str
    memory: float  # B
    bandwidth: float  # B/s, of memory
    flops: float  # 1/s, peak
    efficiency: float = 1.0  # share of the peak that dense layers reach
    gather: float = 0.0  # s/B to bring a bucket together; 0: three passes over memory
    fixed_gather: float = 0.0  # s to do so, however small it is
    scale: float = 0.0  # s/B to make a bucket's sum a mean; 0: a copy
    fixed_scale: float = 0.0  # s to do so, however small it is
    codecs: Mapping[str, CodecRate] = field(default_factory=dict)  # measured; else from bandwidth
    source: str = ""

    def __post_init__(self) -> None:
        _check_name("device", self.name)
        for name in ("memory", "bandwidth", "flops"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise CommschedError(f"device: {name} must be finite and more than 0, got {value}")
        if not 0.0 < self.efficiency <= 1.0:
            raise CommschedError(f"device: efficiency must be in (0, 1], got {self.efficiency}")
        _check("device: gather", self.gather)
        _check("device: fixed_gather", self.fixed_gather)
        _check("device: scale", self.scale)
        _check("device: fixed_scale", self.fixed_scale)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some ranks of a machine, numbered 0..size-1 among themselves."""

    ranks: tuple[int, ...]  # of the machine
    nodes: tuple[int, ...]  # node of each member

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Members of each node, as numbers inside the group, nodes in order of first member."""
        found: dict[int, list[int]] = {}
        for member, node in enumerate(self.nodes):
            found.setdefault(node, []).append(member)
        return tuple(tuple(m) for m in found.values())

    @property
    def lanes(self) -> int:
        """Members per node, where every node has the same number; else an error."""
        counts = {len(m) for m in self.members}
        if len(counts) != 1:
            raise CommschedError(
                f"nodes have different numbers of ranks ({sorted(counts)}); a two-level collective"
                " needs the same number on each"
            )
        return counts.pop()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Nodes of ranks, the links inside and between them, and what computes on each rank."""

    name: str
    node_of_rank: tuple[int, ...]
    inside: Link
    between: Link
    nic: Nic | None  # None: no port is shared
    device: Device
    overrides: Mapping[int, Link] = field(default_factory=dict)  # node -> its link to other nodes
    jitter: float = 0.0  # sigma of the log-normal factor on compute, per rank and step
    coding_jitter: float = 0.0  # the same on coding, per rank and operation
    startup: float = 0.0  # s before an exchange's first message: wake-up, skew of the ranks
    restart: float = 0.0  # the same before a later exchange of a launch: everybody is awake
    handover: float = 0.0  # s, mean until another thread of the rank takes up what is ready
    alone: float = 1.0  # coding seconds if no other rank codes, divided by those if all do
    slowed: float = 1.0  # coding seconds beside an exchange of the rank, divided by those apart
    burst: float = 0.0  # s of bytes that a port to other nodes lets through at once after a rest
    cores: int = 0  # of a node, where its ranks are more than its cores serve; 0: no matter
    overlap: float = 1.0  # share of a transfer that progresses while its rank computes
    native: tuple[tuple[float, float], ...] = ()  # measured (bytes, seconds) of MPI's all-reduce
    fabric: Fabric | None = None  # where it was calibrated
    held_out: tuple[HeldOut, ...] = ()  # what that calibration predicted without having seen it
    measured: Mapping[str, float] = field(default_factory=dict)  # what the model does not use
    source: str = ""

    def __post_init__(self) -> None:
        _check_name("machine", self.name)
        if not 1 <= self.size <= MAX_RANKS:
            raise CommschedError(f"a machine has 1 to {MAX_RANKS} ranks, got {self.size}")
        if set(self.node_of_rank) != set(range(self.nodes)):
            raise CommschedError(
                f"nodes must be numbered 0 to {self.nodes - 1} with a rank on each, got"
                f" {sorted(set(self.node_of_rank))[:8]}"
            )
        unknown = [node for node in self.overrides if not 0 <= node < self.nodes]
        if unknown:
            raise CommschedError(
                f"override of node {unknown[0]}: nodes are numbered 0 to {self.nodes - 1}"
            )
        _check("jitter", self.jitter)
        _check("coding_jitter", self.coding_jitter)
        _check("startup", self.startup)
        _check("restart", self.restart)
        _check("handover", self.handover)
        _check("burst", self.burst)
        _check("cores", self.cores)
        if not 0.0 <= self.overlap <= 1.0:
            raise CommschedError(f"overlap must be in [0, 1], got {self.overlap}")
        if not 0.0 < self.alone <= 1.0:
            raise CommschedError(f"alone must be in (0, 1], got {self.alone}")
        if not (isfinite(self.slowed) and self.slowed >= 1.0):
            raise CommschedError(f"slowed must be finite and at least 1, got {self.slowed}")
        _check_points("native", self.native)

    @property
    def size(self) -> int:
        return len(self.node_of_rank)

    @cached_property
    def nodes(self) -> int:
        return len(set(self.node_of_rank))

    @cached_property
    def ranks_of_node(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.node_of_rank).tolist())

    @cached_property
    def everyone(self) -> Group:
        return Group(ranks=tuple(range(self.size)), nodes=self.node_of_rank)


def resized(machine: Machine, nodes: int | None = None, lanes: int | None = None) -> Machine:
    """Give a machine other counts of nodes and of ranks per node; links and device stay.

    Overrides of nodes that are gone are dropped, and so is what holds for the old counts only: the
    measured all-reduce of MPI and the held-out errors of the calibration.
    """
    nodes = machine.nodes if nodes is None else nodes
    lanes = machine.everyone.lanes if lanes is None else lanes
    placed = placement(nodes, lanes)
    same = placed == machine.node_of_rank
    return replace(
        machine,
        node_of_rank=placed,
        overrides={n: link for n, link in machine.overrides.items() if n < nodes},
        native=machine.native if same else (),
        held_out=machine.held_out if same else (),
    )


def placement(nodes: int, lanes: int) -> tuple[int, ...]:
    """Node of each rank where ranks fill one node after the other."""
    for name, count in (("nodes", nodes), ("lanes", lanes)):
        if count < 1:
            raise CommschedError(f"{name} must be at least 1, got {count}")
    if nodes * lanes > MAX_RANKS:
        raise CommschedError(f"a machine has 1 to {MAX_RANKS} ranks, got {nodes} x {lanes}")
    return tuple(node for node in range(nodes) for _ in range(lanes))


def _check(name: str, value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise CommschedError(f"{name} must be finite and at least 0, got {value}")


def _check_name(kind: str, name: str) -> None:
    if not name or not name.isprintable() or len(name) > 200:
        raise CommschedError(f"{kind} {name[:60]!a}: a name has 1 to 200 printable characters")


def _check_points(name: str, points: tuple[tuple[float, float], ...]) -> None:
    """Points are (bytes, seconds): bytes ascend, seconds do not descend."""
    last, before = -1.0, 0.0
    for nbytes, seconds in points:
        if not (
            nbytes >= 0 and nbytes > last and isfinite(nbytes) and before <= seconds < float("inf")
        ):
            raise CommschedError(
                f"{name}: point ({nbytes:g} B, {seconds:g} s) is out of order: bytes must ascend"
                " from 0 on, seconds must not descend"
            )
        last, before = nbytes, seconds
