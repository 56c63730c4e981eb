"""A small machine, and exchanges that are played on it."""

from dataclasses import replace

import numpy as np

from commsched.coding.registry import CODECS
from commsched.cost.play import Played, play
from commsched.exchange.payload import Payload
from commsched.machine.model import Device, Link, Machine
from commsched.net.bucket import BucketSpec
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule

ROUTES = [name for name in COLLECTIVES if name != "native"]
DEVICE = Device(name="test", memory=1e10, bandwidth=1e11, flops=1e13)
FAST = Link(latency=1e-6, overhead=3e-7, per_byte=1e-11)
SLOW = Link(latency=5e-6, overhead=1e-6, per_byte=1e-10)


def machine(nodes: tuple[int, ...], **changes: object) -> Machine:
    """A machine whose rank i sits on node nodes[i]."""
    made = Machine(
        name="test", node_of_rank=nodes, inside=FAST, between=SLOW, nic=None, device=DEVICE
    )
    return replace(made, **changes)


def filled(nodes: int, lanes: int, **changes: object) -> Machine:
    return machine(tuple(node for node in range(nodes) for _ in range(lanes)), **changes)


def carry(schedule: Schedule, codec: str, spec: BucketSpec) -> Payload:
    gathers = schedule.goal in (Goal.ALL_GATHER, Goal.ALL_TO_ALL)
    return (Payload.gathered if gathers else Payload.reducing)(schedule, CODECS[codec], spec)


def played(
    name: str,
    on: Machine,
    numel: int,
    codec: str = "dense",
    density: float = 1.0,
    start: np.ndarray | None = None,
) -> Played:
    group = on.everyone
    schedule = COLLECTIVES[name](group)
    payload = carry(schedule, codec, BucketSpec.uniform(numel, density))
    begin = np.zeros(group.size) if start is None else start
    return play(schedule, payload, on, group, begin)
