"""The rates at which a node and each of its ranks reach other nodes."""

from dataclasses import dataclass
from math import inf

from commsched.machine.model import Machine
from commsched.units import bits, count, nbytes, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Rates to other nodes in one direction [B/s], if all ranks of a node send at once."""

    ranks: int  # of the fullest node
    ports: int | None  # None: each rank has a port of its own
    per_node: float
    per_rank: float


def reach(machine: Machine) -> Reach | None:
    """Return the rates of a machine; None if it has one node or its bytes cost nothing."""
    ranks = max(machine.ranks_of_node)
    link, nic = machine.between, machine.nic
    alone = 1 / link.per_byte if link.per_byte else inf
    if machine.nodes == 1:
        return None
    if nic is None:
        per_rank, ports = alone, None
    else:
        shared = -(-ranks // min(nic.per_node, ranks))  # ranks of the fullest port
        per_rank = min(alone, 1 / (nic.per_byte * shared) if nic.per_byte else inf)
        ports = nic.per_node
    if per_rank == inf:
        return None
    total = inf if nic is None or not nic.per_byte else nic.per_node / nic.per_byte
    return Reach(ranks=ranks, ports=ports, per_node=min(total, ranks * per_rank), per_rank=per_rank)


def network(machine: Machine) -> list[str]:
    """Say in a line the rates of a node and a rank to the network."""
    found = reach(machine)
    if found is None:
        return []
    node, rank = rate(found.per_node), rate(found.per_rank)
    if found.ranks == 1:
        return [f"network: {node} per node of 1 rank"]
    if found.ports is None:
        return [f"network: {node} per node: {rank} for each of {found.ranks} ranks, no shared port"]
    ports = count(found.ports, "port")
    return [
        f"network: {node} per node ({ports} for {found.ranks} ranks), {rank} per rank if all send"
    ]


def network_data(machine: Machine) -> dict[str, float] | None:
    """Return the rates of a node and a rank in bit/s, for JSON."""
    found = reach(machine)
    if found is None:
        return None
    return {
        "bits_per_second_per_node": significant(8 * found.per_node),
        "bits_per_second_per_rank": significant(8 * found.per_rank),
    }


def rate(value: float) -> str:
    """Write a rate as networks are sold, and in bytes."""
    return f"{bits(value)} ({nbytes(value)}/s)"
