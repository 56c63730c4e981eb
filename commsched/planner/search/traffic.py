"""The least time for which the sum of a tensor keeps ports busy under any lossless method."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from commsched.arrays import Floats
from commsched.cost.pattern import once
from commsched.machine.level import place_of_node
from commsched.machine.model import Group, Link, Machine
from commsched.net.sparsity import Sparsity

PACKED = 3.5  # B of a value in lists between nodes, which code exponents with four bits
SLACK = 8.0  # B: methods round the number of elements that they expect


def least_seconds(law: Sparsity, numel: int, machine: Machine) -> Floats:
    """Return lower bounds, s, of the busy time of a rank's receive port: one per argument below.

    Each bound may be added up over the exchanges of a plan; the largest sum is the plan's bound:

        G A(p - 1)                                          what a rank must hear of all others
        G_J A(p - p_J) / p_J                                what node J must hear of the others
        v n (g (p d + (p - 2) u) + (G - g) (s + (N - 2) u)) / p       all that is received

    p ranks on N nodes, p_J on node J; n elements; one rank has the share d of them, all ranks
    together the share u; s is the sum over the nodes of the share that a node has; G_J, G [s/B]
    into a node; g inside a node; v [B] of a value: 4 of a dense tensor or on one node, else PACKED.
    A(k) = v n u_k
    + H(k) / 8 B, at most 4 n: the values of the sum of k ranks and the entropy of where they are.
    The last bound counts values: for each element all holders but one must send before any rank
    knows the sum, and all ranks but one must receive afterwards.
    Source for dense values: Patarasuk & Yuan, JPDC 69(2), 2009, theorem 1.
    Holds if values travel unchanged (lists may pack their exponents), and a port receives
    one message at a time.
    """
    ranks = machine.size
    if ranks == 1:
        return np.zeros(1)
    inside, kinds = once(machine, machine.everyone, _speeds)
    outside = [per_byte for _, per_byte in kinds]
    least, most = min([inside, *outside]), max([inside, *outside])
    value = 4.0 if law.law == "dense" or machine.nodes == 1 else PACKED
    cuts = [least * _cut(law, numel, ranks - 1, value)]
    cuts += [per_byte * _cut(law, numel, ranks - own, value) / own for own, per_byte in kinds]
    seconds = least * (ranks * law.density + (ranks - 2) * _share(law, ranks))
    if outside and min(outside) > inside:
        crossing = sum(count * _share(law, own) for (own, _), count in kinds.items())
        crossing += (machine.nodes - 2) * _share(law, ranks)
        seconds += (min(outside) - inside) * crossing
    found = np.array([*cuts, value * numel * seconds / ranks])
    return np.maximum(found - SLACK * most, 0.0)


def _speeds(machine: Machine, group: Group) -> tuple[float, Mapping[tuple[int, float], int]]:
    """Return the least s/B inside nodes, and the kinds of nodes."""
    return _fastest(machine, [machine.inside], inside=True), _kinds_of_nodes(machine)


def _kinds_of_nodes(machine: Machine) -> Mapping[tuple[int, float], int]:
    """Count nodes by (ranks on the node, s/B into it). Empty if there is only one node."""
    if machine.nodes == 1:
        return {}
    each = enumerate(machine.ranks_of_node)
    return Counter((own, _into_node(machine, node)) for node, own in each)


def _cut(law: Sparsity, numel: int, merged: int, value: float) -> float:
    """Return the least bytes that can describe the sum of some ranks, `value` B per number."""
    said = value * numel * _share(law, merged) + law.entropy(numel, merged) / 8.0
    return min(said, 4.0 * numel)


def _share(law: Sparsity, merged: int) -> float:
    """Return the share of elements that at least one of `ranks` ranks has."""
    return 1.0 if law.law == "dense" else float(law.after(merged))


def _into_node(machine: Machine, node: int) -> float:
    """Return the least s/B of a message into a node."""
    link = _fastest(machine, [machine.overrides.get(node, machine.between)], inside=False)
    return link if machine.nic is None else max(link, machine.nic.per_byte)


def _fastest(machine: Machine, links: list[Link], *, inside: bool) -> float:
    """Return the least s/B of some links and of all levels `inside` nodes, or of those outside."""
    node = place_of_node(machine.levels)
    others = machine.levels[:node] if inside else machine.levels[node + 2 :]
    slow = [override.link for level in others for override in level.overrides]
    return min(map(_per_byte, [*links, *(level.link for level in others), *slow]))


def _per_byte(link: Link) -> float:
    """Return the least s/B of a message of any size."""
    measured = [seconds / nbytes for nbytes, seconds in link.points if nbytes > 0]
    return min([link.per_byte, *measured])
