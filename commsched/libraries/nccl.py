"""NCCL's choice of an all-reduce.

Take a ring or trees by protocol LL, LL128 or Simple: what NCCL itself expects to be the fastest.
Its kernels add what comes while they receive it, and GPUs with NVLink send inside their node and to
other nodes at once: 24 A100 with 4 ports of 200 Gbit/s per node reach 96 GB/s of 100 (published in
NVIDIA/nccl-tests, issue 119).
Source of all numbers unless another one is given: NCCL 2.30.7, src/graph/tuning.cc (Apache 2.0).
Left out: NVLS and CollNet, which need switches that add; PAT, which sums nothing; limits per
channel, because a machine file does not tell how many channels NCCL opens. Between nodes LL128 is
taken for allowed, as where each network port shares a PCI switch with its GPUs; with ports behind
the processor NCCL leaves it out, and the files do not tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2
from typing import NamedTuple

from commsched.cost.pattern import once
from commsched.machine.group_links import group_links
from commsched.machine.library import (
    LIBRARIES,
    Algorithm,
    Library,
    LinkStep,
    PipelinedTrees,
    Protocol,
)
from commsched.machine.model import Group, Link, Machine

US, GB = 1e-6, 1e9
RING, TREE = "ring", "tree"
TREES = 2  # mirrored ones
LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS = LL, LL128, SIMPLE


def _table(tree: tuple[float, ...], ring: tuple[float, ...]) -> dict[tuple[str, str], float]:
    """Return seconds by algorithm and protocol; tree, ring: us by LL, LL128 and Simple."""
    rows = (TREE, tree), (RING, ring)
    return {(kind, p): t * US for kind, row in rows for p, t in zip(PROTOCOLS, row, strict=True)}


BASE = _table((6.8, 14.0, 8.4), (6.6, 14.0, 8.4))  # before the first message: `baseLatencies`
# Of a step: `hwLatencies`.
NVLINK = _table((0.6, 1.25, 4.0), (0.6, 1.9, 3.4))
PCI = _table((1.0, 1.9, 4.0), (1.0, 2.5, 5.7))
NET = _table((5.0, 8.5, 14.0), (2.7, 4.0, 14.0))
POST = {LL: 1.0 * US, LL128: 1.0 * US, SIMPLE: 3.0 * US}  # per step if nodes > 1: `getNetOverhead`
# B/s of LL at most, `llMaxBws`: on one node by GPU, on two and on more beside an Intel processor.
LL_MOST = {70: 39.0 * GB, 80: 87.7 * GB, 90: 141.0 * GB, 100: 282.0 * GB}
LL_MOST_NODES = 39.0 * GB, 20.4 * GB
# Share of the bandwidth that a tree reaches, by the power of two of its bytes from 64 B on:
# `treeCorrectionFactor`. It is part of the choice only, not of the price.
REACHED = {
    LL: "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10 10",
    LL128: "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10 10",
    SIMPLE: "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9 9",
}
TENTHS = {name: [int(tenth) / 10 for tenth in text.split()] for name, text in REACHED.items()}
# Compute capability by a word in the device's name (NVIDIA, CUDA GPUs); LL128 needs 70.
CAPABILITY = {"P100": 60, "V100": 70, "A100": 80, "H100": 90, "H200": 90, "B200": 100}
UNKNOWN = 80  # assumption: of devices without such a word
# B that a tree passes on as one piece: buffer / steps, src/init.cc and src/include/device.h.
PIECES = {LL: 32768.0, LL128: 576000.0, SIMPLE: 524288.0}


@dataclass(frozen=True, slots=True)
class _GroupPlace:
    """A group of ranks as NCCL sees it."""

    ranks: int
    nodes: int
    capability: int
    channels: int
    nvlink: bool
    inside: float  # B/s of a ring in a node
    between: float  # B/s that all channels of a node take across its border
    near: Link  # in a node; L + 2 o is that of a step by protocol Simple
    far: Link  # ... and between nodes

    @property
    def bandwidth(self) -> float:
        return self.inside if self.nodes == 1 else min(self.inside, self.between)

    def near_step(self, kind: str, protocol: str) -> LinkStep:
        """Return a step in a node; those of a ring that crosses nodes also post a message."""
        table = NVLINK if self.nvlink else PCI
        posts = kind == RING and self.nodes > 1
        return _moved(table, kind, protocol, POST[protocol] if posts else 0.0)

    def far_step(self, kind: str, protocol: str) -> LinkStep:
        """Return a step between nodes; with a rank per node the ring's are those of trees."""
        return _moved(NET, TREE if self.ranks == self.nodes else kind, protocol)


def _moved(
    table: dict[tuple[str, str], float], kind: str, protocol: str, floor: float = 0.0
) -> LinkStep:
    """Add to a link's seconds per step of a ring what another protocol differs by.

    The link of a GPU machine is stated for a ring by Simple, as the shipped ones say. No step takes
    less than the table says for the protocol, or than the link if that is less.
    """
    own = table[kind, protocol]
    return LinkStep(more=own - table[RING, SIMPLE], table=own, floor=floor)


def _place(machine: Machine, group: Group) -> _GroupPlace:
    lanes = min(len(members) for members in group.members)
    ports = lanes if machine.nic is None else min(machine.nic.per_node, lanes)
    channels = ports if len(group.members) > 1 else 1
    near, far = group_links(machine, group)
    across = max(link.per_byte for link in far)
    if machine.nic is not None:
        across = max(across, machine.nic.per_byte)
    name = machine.device.name
    return _GroupPlace(
        ranks=group.size,
        nodes=len(group.members),
        capability=next((c for word, c in CAPABILITY.items() if word in name), UNKNOWN),
        channels=channels,
        nvlink="pcie" not in name.lower(),
        inside=1 / near.per_byte if near.per_byte else inf,
        between=channels / across if across else inf,
        near=near,
        far=max(far, key=lambda link: link.latency + 2 * link.overhead),
    )


def _share(place: _GroupPlace, kind: str, protocol: str) -> float:
    """Return the share of a place's bandwidth that carries values.

    A ring by LL has half of it, by LL128 0.92; a tree has 0.92 by Simple, 1 / 3.8 of that by LL,
    and 120 / 128 of it by LL128, 7 / 9 on one node.
    """
    if kind == TREE:
        by_ll128 = 7 / 9 if place.nodes == 1 else 120 / 128
        return 0.92 * {LL: 1 / 3.8, LL128: by_ll128, SIMPLE: 1.0}[protocol]
    return {LL: 0.5, LL128: 0.92, SIMPLE: 1.0}[protocol]


def _most(place: _GroupPlace, protocol: str) -> float:
    """Return the B/s of values that a protocol carries at most: `llMaxBws` by LL."""
    if protocol != LL:
        return inf
    alone = LL_MOST[max(place.capability, 70)]
    return alone if place.nodes == 1 else LL_MOST_NODES[place.nodes > 2]


class _Expected(NamedTuple):
    """The seconds that NCCL expects of an algorithm by a protocol: latency, and bytes over rate."""

    latency: float  # s
    rate: float  # B/s
    crowded: float  # s of latency from `many` bytes on
    many: float  # B
    reached: Sequence[float] = ()  # share of the rate by the power of two of its bytes

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of a payload."""
        rate = self.rate
        if self.reached:
            power = int(log2(nbytes / 64)) if nbytes >= 64 else -1
            if 0 <= power < 23:
                rate *= self.reached[power]
        return (self.latency if nbytes < self.many else self.crowded) + nbytes / rate


def _expected(place: _GroupPlace, kind: str, protocol: str) -> _Expected:
    """Return what NCCL expects of an algorithm by a protocol.

    Ring: 2 (p - 1) steps, 2 (N - 1) of them between nodes; 2 (p - 1) / p n bytes. Tree: the chain
    of a node and log2 N levels, up and down; 2 n bytes, half of it between two nodes.
    """
    p, nodes = place.ranks, place.nodes
    near = place.near_step(kind, protocol).seconds(place.near)
    far = place.far_step(kind, protocol).seconds(place.far)
    latency = BASE[kind, protocol]
    rate = min(place.bandwidth * _share(place, kind, protocol), _most(place, protocol))
    if kind == TREE:
        latency += 2 * ((p // nodes - 1) * near + int(log2(nodes)) * far)
        rate *= 0.5 if nodes != 2 else min(1.0, 0.5 * place.inside / place.bandwidth)
        return _Expected(latency, rate, latency, inf, TENTHS[protocol])
    steps, crossing = 2 * (p - 1), 2 * (nodes - 1)
    latency += (steps - crossing) * near + crossing * far
    rate *= p / steps
    if protocol != SIMPLE or nodes == 1:
        return _Expected(latency, rate, latency, inf)
    slow = 1.9 if place.capability < 80 else 1.4  # "plateau effect of ring"
    return _Expected(latency, rate, latency * slow, 64.0 * (place.channels * p))


def _piece(place: _GroupPlace, protocol: str, nbytes: float) -> float:
    """Return the bytes that a tree passes on as one; LL128 halves them for shorter payloads.

    Source: NCCL 2.30.7, src/enqueue.cc, the size of a chunk.
    """
    piece = PIECES[protocol]
    if protocol == LL128:
        steps = (1 + int(log2(place.nodes)) + 0.1 * place.ranks / place.nodes) / (
            place.ranks / place.nodes
        )
        for many, least in ((64, 131072), (16, 32768)):
            while nbytes / (place.channels * piece) < steps * many and piece > least:
                piece /= 2
    return place.channels * piece


def _relays(place: _GroupPlace, kind: str, protocol: str) -> float:
    """Count the ranks of a node's chain that pass on a tree's piece while it comes.

    By LL and LL128 a rank stores each line of a message at its next rank as soon as it has come;
    the pieces of two trees share the links. By Simple it waits for the piece. Source: NCCL 2.30.7,
    src/device/prims_ll.h, prims_ll128.h and prims_simple.h.
    """
    if kind == RING or protocol == SIMPLE:
        return 1.0
    return max((place.ranks // place.nodes - 1) / TREES, 1.0)


def _pipeline(place: _GroupPlace, protocol: str, nbytes: float) -> PipelinedTrees:
    """Describe two binary trees over nodes with a chain in each node; each has half the payload.

    The rank between a node's chain and the trees sends the payload twice to other nodes (once if
    there is only one) and once down its chain; a rank within the chain sends it up and down.
    """
    between, inside = min(place.nodes, 3) - 1, min(place.ranks // place.nodes, 3) - 1
    if between and not place.nvlink:  # the first of these ranks is the busiest
        inside = min(inside, 1)
    piece = _piece(place, protocol, nbytes)
    return PipelinedTrees(
        trees=TREES,
        piece=piece,
        between=float(between),
        inside=inside * _relays(place, TREE, protocol),
    )


class _Choice(NamedTuple):
    """What NCCL chooses from for a group, and what it has chosen so far."""

    place: _GroupPlace
    expected: dict[tuple[str, str], _Expected]
    known: dict[tuple[str, str, PipelinedTrees | None], Algorithm]


def _choice(machine: Machine, group: Group) -> _Choice:
    place = _place(machine, group)
    kinds = [
        (kind, protocol)
        for kind in (TREE, RING)
        for protocol in PROTOCOLS
        if protocol != LL128 or (place.nvlink and place.capability >= 70)
    ]
    return _Choice(place, {pair: _expected(place, *pair) for pair in kinds}, {})


def algorithm(machine: Machine, group: Group, nbytes: float) -> Algorithm:
    """Take what NCCL expects to be the fastest of ring and tree by each protocol."""
    place, expected, known = once(machine, group, _choice)
    kind, protocol = min(expected, key=lambda pair: expected[pair].seconds(nbytes))
    pipeline = _pipeline(place, protocol, nbytes) if kind == TREE else None
    key = kind, protocol, pipeline
    if key not in known:
        share, most = _share(place, kind, protocol), _most(place, protocol)
        known[key] = Algorithm(
            collective="ring" if kind == RING else "binary-tree:chains",
            name=kind,
            protocol=protocol,
            base=BASE[kind, protocol],
            inside=Protocol(
                step=place.near_step(kind, protocol),
                share=share,
                most=most,
                relays=_relays(place, kind, protocol),
            ),
            between=Protocol(step=place.far_step(kind, protocol), share=share, most=most),
            channels=place.channels,
            apart=place.nvlink,
            fused=True,
            pipeline=pipeline,
        )
    return known[key]


LIBRARIES.add("nccl")(Library("NCCL", algorithm))
