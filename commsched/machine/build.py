"""A machine from a few words: devices, nodes, and the rate of a network port."""

from dataclasses import dataclass, replace

from commsched.errors import CommschedError
from commsched.machine.devices import accelerator
from commsched.machine.model import Link, Machine, Nic, placement
from commsched.units import bits, nbytes, seconds

OVERHEAD = 1e-6  # s, paid by sender and receiver; assumption, as of the shipped p3.16xlarge
LATENCY = 30e-6  # s; L + 2 o over TCP in one data centre; assumption, as of p3.16xlarge


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The user's description of a machine."""

    name: str
    nodes: int
    ranks: int  # of a node, one per device
    device: str
    port: float  # B/s
    ports: int = 1  # of a node
    latency: float | None = None  # s, L + 2 o; None: assumed
    inside: float | None = None  # B/s; None: as sold with the device


def build(order: Order) -> Machine:
    """Make the machine; the source of each number is a data sheet, an assumption or the user."""
    sold = accelerator(order.device)
    port = bits(order.port)
    if order.ports < 1:
        raise CommschedError(f"--ports must be at least 1, got {order.ports}")
    total = LATENCY if order.latency is None else order.latency
    if total < 2 * OVERHEAD:
        least = seconds(2 * OVERHEAD)
        raise CommschedError(
            f"--latency must be at least {least}, got {seconds(total)}; for a shorter one leave it"
            " out, and give --set links.between.overhead_us=O and --set links.between.latency_us=L:"
            " it is L + 2 O"
        )
    inside = sold.inside
    if order.inside is not None:
        source = f"bandwidth: stated as {nbytes(order.inside)}/s; before: {inside.source}"
        inside = replace(inside, per_byte=1 / order.inside, source=source)
    assumed = f"assumption of {seconds(LATENCY)} over TCP, as of p3.16xlarge"
    latency = assumed if order.latency is None else "stated"
    return Machine(
        name=order.name,
        source=(
            f"commsched machine new: {order.nodes} nodes of {order.ranks} {sold.device.name},"
            f" {order.ports} network port(s) of {port} per node; jitter 0 and overlap 1 are"
            " assumptions: calibrate a real machine"
        ),
        node_of_rank=placement(order.nodes, order.ranks),
        inside=inside,
        between=Link(
            latency=total - 2 * OVERHEAD,
            overhead=OVERHEAD,
            per_byte=1 / order.port,
            source=f"bandwidth: stated as {port}; latency L + 2 o: {latency}",
        ),
        nic=Nic(per_node=order.ports, per_byte=1 / order.port, source=f"stated as {port}"),
        device=sold.device,
        library="nccl" if "NVIDIA" in sold.device.name else "mpich",
    )
