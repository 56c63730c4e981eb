"""The machine in the cost model, in seconds, bytes and ranks, and the keys of its file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from commsched.errors import CommschedError
from commsched.machine.device import Bandwidth as Bandwidth
from commsched.machine.device import CodecRate as CodecRate
from commsched.machine.device import Device as Device
from commsched.machine.device import Peak as Peak
from commsched.machine.fabric import Fabric, HeldOut
from commsched.machine.level import (
    Level,
    LevelShape,
    SlowChild,
    check_tree,
    place_of_node,
    refitted,
    shapes_of,
)
from commsched.machine.link import (
    PROPORTION,
    UNKNOWN,
    Delay,
    Points,
    Shared,
    check_points,
    check_shared,
)
from commsched.machine.link import Link as Link
from commsched.machine.link import Nic as Nic
from commsched.machine.stalls import Stalls
from commsched.records import (
    NOT_NEGATIVE,
    WRITTEN,
    Check,
    Key,
    Rounded,
    Source,
    Stored,
    check_name,
    normalise,
)
from commsched.units import significant

MAX_RANKS = 2**20
SPREAD = Check(
    "must be finite and at least 0, at most 10", lambda sigma: 0.0 <= sigma <= 10.0
)  # factors of e^10
LIBRARY = Check(
    "must be the name of a library, such as nccl, mpich or openmpi",
    lambda name: name == "" or name.isidentifier(),
)
NUMBERS = Stored(
    kind=dict[str, float],
    read=dict,
    write=lambda numbers: {name: significant(number) for name, number in numbers.items()},
    rounds=True,
)


GROUPS = 64  # groups that a machine caches


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some ranks of a machine, numbered 0..size-1 among themselves."""

    ranks: tuple[int, ...]  # of the machine
    nodes: tuple[int, ...]  # node of each member
    levels: tuple[LevelShape, ...] = ()  # if the machine has other levels than nodes

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.ranks, self.nodes, self.levels))

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Return the members of each node, as numbers in the group; nodes by first member."""
        found: dict[int, list[int]] = {}
        for member, node in enumerate(self.nodes):
            found.setdefault(node, []).append(member)
        return tuple(tuple(m) for m in found.values())

    @cached_property
    def lanes(self) -> int:
        """Return the members per node; an error if nodes have different numbers."""
        counts = {len(m) for m in self.members}
        if len(counts) != 1:
            raise CommschedError(
                f"nodes have different numbers of ranks ({sorted(counts)}); a two-level collective"
                " needs the same number on each"
            )
        return counts.pop()

    def lane_of(self, member: int) -> int:
        """Return the place of a member in its node."""
        return next(node.index(member) for node in self.members if member in node)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """The node of each rank as a file gives it: two counts, or one number per rank."""

    nodes: int | None = None
    lanes: int | None = None
    node_of_rank: tuple[int, ...] | None = None

    @classmethod
    def of(cls, node_of_rank: tuple[int, ...]) -> "RankLayout":
        """Use counts if ranks fill one node after the other, else one number per rank."""
        nodes, lanes = len(set(node_of_rank)), node_of_rank.count(0)
        if node_of_rank == tuple(node for node in range(nodes) for _ in range(lanes)):
            return cls(nodes=nodes, lanes=lanes)
        return cls(node_of_rank=node_of_rank)

    def expanded(self) -> tuple[int, ...]:
        """Return the node of each rank."""
        if self.node_of_rank is not None and self.nodes is None and self.lanes is None:
            return self.node_of_rank
        if self.node_of_rank is not None or self.nodes is None or self.lanes is None:
            keys = [k for k in ("nodes", "lanes", "node_of_rank") if getattr(self, k) is not None]
            raise CommschedError(
                "a machine gives either `nodes` and `lanes`, or `node_of_rank`, got"
                f" {' and '.join(keys) or 'none of them'}"
            )
        return placement(self.nodes, self.lanes)


LAYOUT = Stored(kind=RankLayout, read=RankLayout.expanded, write=RankLayout.of, inline=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Another link to other nodes for one node."""

    node: int
    between: Link


def _by_node(overrides: Iterable[Override]) -> dict[int, Link]:
    links: dict[int, Link] = {}
    for override in overrides:
        if override.node in links:
            raise CommschedError(
                f"overrides: node {override.node} stands twice; give each node once"
            )
        links[override.node] = override.between
    return links


OVERRIDES = Stored(
    kind=tuple[Override, ...],
    read=_by_node,
    write=lambda links: [Override(node=n, between=link) for n, link in sorted(links.items())],
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Nodes of ranks, the links inside and between them, and what computes on each rank."""

    FORMAT: ClassVar[str] = "commsched-machine/1"
    # Of older versions.
    GONE: ClassVar[tuple[str, ...]] = ("alone", "slowed", "restart_us", "dispatch_awake")

    name: str
    source: Source = UNKNOWN
    node_of_rank: Annotated[tuple[int, ...], LAYOUT]
    inside: Annotated[Link, Key("links.inside")]
    between: Annotated[Link, Key("links.between")]
    nic: Nic | None = None  # None: no port is shared
    overrides: Annotated[Mapping[int, Link], OVERRIDES] = field(default_factory=dict)  # by node
    # All levels, inside out, if there are others than nodes. The links and ports inside and between
    # nodes are those above.
    levels: tuple[Level, ...] = ()
    device: Device
    # Sigma of the log-normal factor on compute, per rank and step.
    jitter: Annotated[Rounded, SPREAD, WRITTEN] = 0.0
    stalls: tuple[Stalls, ...] = ()  # of compute, beside the jitter
    # Sigma of the log-normal factor on coding, per rank and operation.
    coding_jitter: Annotated[Rounded, SPREAD] = 0.0
    # Before an exchange's first message: wake-up, skew of the ranks.
    startup: Annotated[Delay, WRITTEN] = 0.0
    # Until the thread that receives a message runs, while its rank computes on a core.
    wakeup: Delay = 0.0
    # In addition, until the interpreter probes for a message of unknown length.
    interpreter: Delay = 0.0
    # Processor time of a rank's threads per message that it sends or receives.
    message: Delay = 0.0
    # Processor time of a rank's threads per exchange for which a thread wakes up, besides coding,
    # messages, hand-overs, and what `busy` says.
    dispatch: Delay = 0.0
    # Additional processor time of coding, or of waking up for an exchange, if the rank computes.
    cold: Delay = 0.0
    # Share of `startup` and of a bucket's `fixed_gather` that an operation takes if its thread is
    # still busy when it is ready, so that the thread need not wake up.
    awake: Annotated[Rounded, PROPORTION] = 1.0
    # Length of a sleep after which waking up costs half as much as after a very long sleep; 0:
    # every sleep counts as long. The other numbers hold after a sleep of 5 ms.
    cooling: Delay = 0.0
    handover: Delay = 0.0  # mean until another thread of the rank takes up a ready operation
    # Share of `handover` after a sleep of 0.5 ms or less: processor time.
    handover_awake: Annotated[Rounded, PROPORTION] = 1.0
    handover_computing: Delay = 0.0  # additional mean, if the rank computes on a core
    # Seconds of bytes that a port to other nodes lets through at once after a rest.
    burst: Annotated[Delay, WRITTEN] = 0.0
    # Cores of a node, which its ranks share; 0: each task has a core of its own.
    cores: Annotated[Rounded, NOT_NEGATIVE] = 0.0
    # Share of a transfer that progresses while its rank computes.
    overlap: Annotated[Rounded, WRITTEN, PROPORTION] = 1.0
    native: Points = ()  # measured (bytes, seconds) of the library's all-reduce
    # Whose all-reduce `native` is: nccl, mpich, openmpi; "": see `library.default_library`.
    library: Annotated[str, LIBRARY] = ""
    shared_memory: Shared = ()  # measured from 1 rank of a node on; (): unknown
    fabric: Fabric | None = None  # where it was calibrated
    held_out: tuple[HeldOut, ...] = ()  # measurements that the calibration did not fit to
    # Not used by the model.
    measured: Annotated[Mapping[str, float], NUMBERS] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("machine", self.name)
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
        normalise(self)
        check_points("native", self.native)
        check_shared(self.shared_memory)
        if self.levels:
            self._join_levels()

    def _join_levels(self) -> None:
        """Let the levels have the links and ports that `inside` and `between` have."""
        check_tree(self.levels)
        lanes = self.ranks_of_node[0]
        if self.node_of_rank != placement(self.nodes, lanes):
            raise CommschedError("ranks of a machine with levels fill one node after the other")
        levels = list(refitted(self.levels, self.nodes, lanes))
        node = place_of_node(levels)
        levels[node] = replace(levels[node], link=self.inside)
        if self.nodes > 1 and node + 1 == len(levels):
            raise CommschedError(
                f"machine {self.name!r} has no level above its nodes that joins {self.nodes} of"
                " them; nearest: 1 node"
            )
        if node + 1 < len(levels):
            slow = tuple(SlowChild(child=n, link=x) for n, x in sorted(self.overrides.items()))
            levels[node + 1] = replace(
                levels[node + 1], link=self.between, nic=self.nic, overrides=slow
            )
        object.__setattr__(self, "levels", tuple(levels))

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
    def alone(self) -> float:
        """Return the s of compute while other ranks sleep, over the s while all compute."""
        return min(1.0, self.cores / max(self.ranks_of_node)) if self.cores else 1.0

    @property
    def waking(self) -> float:
        """Return the longest wait of a message for a receiver that computes, s."""
        return self.wakeup + self.interpreter

    @property
    def handover_work(self) -> float:
        """Return the processor time of a thread that takes up an operation, s."""
        return self.handover * self.handover_awake

    @property
    def even(self) -> bool:
        """Tell whether all steps compute equally long."""
        return self.jitter == 0.0 and not self.stalls

    @property
    def alike(self) -> bool:
        """Tell whether all steps are equal: no jitter or stalls, also of hand-overs and coding."""
        return self.even and self.handover == self.coding_jitter == 0.0

    @cached_property
    def derived(self) -> dict[object, object]:
        """Return the cache of results derived from the machine, by key."""
        return {}

    @cached_property
    def everyone(self) -> Group:
        return self.group(range(self.size))

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, in their order."""
        members = tuple(map(int, ranks))
        known = self._groups
        if members not in known:
            nodes = tuple(self.node_of_rank[rank] for rank in members)
            if len(known) == GROUPS:
                known.pop(next(iter(known)))
            known[members] = Group(ranks=members, nodes=nodes, levels=shapes_of(self.levels))
        return known[members]

    @cached_property
    def _groups(self) -> dict[tuple[int, ...], Group]:
        """Return the last groups that were asked for, with what was derived from them."""
        return {}


def resized(machine: Machine, nodes: int | None = None, lanes: int | None = None) -> Machine:
    """Give a machine other counts of nodes and of ranks per node; links and device stay.

    Overrides of removed nodes are dropped, and so are numbers that hold only for the old counts:
    the measured all-reduce of MPI and the held-out errors of the calibration.
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


def of_ranks(machine: Machine, ranks: int) -> Machine:
    """Give a machine the nodes that hold `ranks` ranks; fewer than a node's fill a part of it."""
    lanes = machine.everyone.lanes
    if ranks <= lanes:
        return resized(machine, 1, ranks)
    if ranks % lanes:
        low = ranks // lanes * lanes
        raise CommschedError(
            f"{ranks} ranks do not fill nodes of {lanes} ranks of machine {machine.name!r};"
            f" nearest: {low} or {low + lanes}"
        )
    return resized(machine, ranks // lanes)


def placement(nodes: int, lanes: int) -> tuple[int, ...]:
    """Return the node of each rank if ranks fill one node after the other."""
    for name, count in (("nodes", nodes), ("lanes", lanes)):
        if count < 1:
            raise CommschedError(f"{name} must be at least 1, got {count}")
    if nodes * lanes > MAX_RANKS:
        raise CommschedError(f"a machine has 1 to {MAX_RANKS} ranks, got {nodes} x {lanes}")
    return tuple(node for node in range(nodes) for _ in range(lanes))
