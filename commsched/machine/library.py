"""A communication library's all-reduce: its algorithm and its protocol.

`native` leaves a sum to the machine's library. Its price is the library's latency plus the price of
the collective that the library uses, on links as the protocol changes them. The model is the one
of our own schedule of that name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from commsched.machine.device import FREE
from commsched.machine.devices import recognised
from commsched.machine.model import Group, Link, Machine
from commsched.machine.relink import relinked
from commsched.registry import Registry

WORDS = ("NVIDIA", "GPU", "AMD Instinct")  # in the names of devices whose users get NCCL


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStep:
    """Seconds of a protocol's message of no bytes on a link.

    t = max(s + more, min(s, table), floor)     s [s] = L + 2 o of the link
    """

    more: float  # s, beside what the link states
    table: float  # s that the library states for its own links
    floor: float = 0.0  # s

    def seconds(self, link: Link) -> float:
        """Return the seconds of a step on a link."""
        stated = link.latency + 2 * link.overhead
        return max(stated + self.more, min(stated, self.table), self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol's effect on a link."""

    step: LinkStep | None = None  # None: a message of no bytes takes L + 2 o of the link
    share: float = 1.0  # of the link's bandwidth that carries values
    most: float = inf  # B/s of values, however fast the link is
    # Ranks in a row that forward a message while they receive it: on each link its bytes take only
    # a share of their time, so that the row takes every rank's step, but the bytes once.
    relays: float = 1.0


PLAIN = Protocol()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinedTrees:
    """Pipelined trees: only the first piece of each tree is played, the others follow.

        t = played(first piece) + (n - trees * piece) * (between * G with inside * G')

    n [B] the payload; G, G' [s/B] of the links between and inside nodes; "with": `Algorithm.both`.
    Holds if the trees use the ports in turn, and all pieces take equally long.
    """

    trees: int  # each carries an equal part of the payload
    piece: float  # B
    between: float  # messages of the busiest rank to other nodes, per byte of the payload
    inside: float  # messages to its own node, on links as the protocol changes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The collective that a library takes for an all-reduce, and its protocol."""

    collective: str  # of ours
    name: str = ""  # the library's name of the algorithm; "": ours
    protocol: str = ""
    base: float = 0.0  # s before the first message
    inside: Protocol = PLAIN
    between: Protocol = PLAIN
    # Circles or trees that leave each node side by side, each by its own port.
    channels: int = 1
    # Whether GPUs reach each other by other wires than their node's ports, such as NVLink.
    apart: bool = False
    fused: bool = False  # received values are added while they arrive, at the link's rate
    pipeline: PipelinedTrees | None = None

    @property
    def title(self) -> str:
        name = self.name or self.collective
        return f"{name}, {self.protocol}" if self.protocol else name

    def on(self, machine: Machine) -> Machine:
        """Return the machine as the algorithm sees it; the same object if nothing changes.

            G'' = (G with (c - 1) G') / c     of the link between nodes

        c channels cross each node's border by another rank, while its other c - 1 messages stay
        inside: G, G' [s/B] between and inside nodes; "with": `both`.
        """
        if self.inside == self.between == PLAIN and self.channels == 1:
            return machine
        key = "on", self.inside, self.between, self.channels, self.apart, self.fused
        found = machine.derived.get(key)
        if not isinstance(found, Machine):
            machine.derived[key] = found = self._on(machine)
        return found

    def both(self, between: float, inside: float) -> float:
        """Return the s of messages to other nodes and to the own node, one after the other.

        If messages inside nodes have separate wires, both go at once, and the longer time counts.
        """
        return max(between, inside) if self.apart else between + inside

    def _on(self, machine: Machine) -> Machine:
        nic, inside = machine.nic, machine.inside.per_byte
        own = set(machine.overrides.values())

        def across(link: Link) -> Link:
            port = 0.0 if nic is None else nic.of(link) if link in own else nic.per_byte
            mixed = self.both(max(link.per_byte, port), (self.channels - 1) * inside)
            return _by(self.between, replace(link, per_byte=mixed / self.channels))

        protocol = partial(_by, self.inside)
        # One message crosses at a time, at the link's rate.
        found = replace(relinked(machine, inside=protocol, between=across), nic=None)
        if self.channels > 1:
            levels = tuple(replace(level, rails=1) for level in found.levels)
            found = replace(found, levels=levels)
        if not self.fused:
            return found
        codecs = {**machine.device.codecs, "dense": FREE}
        return replace(found, device=replace(machine.device, codecs=codecs))


def _by(protocol: Protocol, link: Link) -> Link:
    """Return a link by a protocol; threads of a GPU, not a processor, pay for the messages."""
    step = protocol.step

    def carried(nbytes: float, seconds: float) -> float:
        return max(seconds / protocol.share, nbytes / protocol.most) / protocol.relays

    return replace(
        link,
        latency=link.latency + 2 * link.overhead if step is None else step.seconds(link),
        overhead=0.0,
        per_byte=carried(1.0, link.per_byte),
        points=tuple((nbytes, carried(nbytes, seconds)) for nbytes, seconds in link.points),
    )


ALONE = Algorithm(collective="doubling", name="of one rank")

Chosen = Callable[[Machine, Group, float], Algorithm]  # the last argument: B of the payload


@dataclass(frozen=True, slots=True)
class Library:
    """A communication library."""

    title: str
    algorithm: Chosen


LIBRARIES: Registry[Library] = Registry("library", "commsched.libraries")


def mpi_library(version: str) -> str:
    """Name the library of an MPI by its version string; MPICH's derivatives count as MPICH."""
    return "openmpi" if "Open MPI" in version else "mpich"


def default_library(machine: Machine) -> str:
    """Name the library of a machine whose file names none.

    A calibrated machine has the MPI of its ranks, other GPUs have NCCL, other processors MPICH.
    """
    if machine.fabric is not None:
        return mpi_library(machine.fabric.mpi)
    named = any(word in machine.device.name for word in WORDS)
    return "nccl" if named or recognised(machine.device.name) is not None else "mpich"


def library_of(machine: Machine) -> Library:
    """Return the library that sums for `native` on a machine."""
    return LIBRARIES[machine.library or default_library(machine)]


def algorithm_of(machine: Machine, group: Group, nbytes: float) -> Algorithm:
    """Return the library's algorithm for an all-reduce of `nbytes` bytes."""
    library = library_of(machine)
    return library.algorithm(machine, group, nbytes) if group.size > 1 else ALONE


def described(machine: Machine, group: Group, nbytes: float) -> str:
    """Name the algorithm of `native` for a payload, such as "NCCL ring, LL128"."""
    text = f"{library_of(machine).title} {algorithm_of(machine, group, nbytes).title}"
    return f"{text}; measured" if machine.native and group.size == machine.size else text
