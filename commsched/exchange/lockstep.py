"""All ranks in one process, round by round: the reference result of every method."""

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.exchange.endpoint import Endpoint, open_endpoint
from commsched.exchange.method import Choice, Method, Phase, resolved
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule


def exchange(schedule: Schedule, held: list[Endpoint]) -> int:
    """Carry out a schedule's rounds: every send carries the values from before its round.

    Return the bytes sent by all ranks together.
    """
    sent = 0
    for rnd in schedule.rounds():
        moves = list(
            zip(
                rnd.src.tolist(),
                rnd.dst.tolist(),
                rnd.first.tolist(),
                rnd.stop.tolist(),
                strict=True,
            )
        )
        packets = [held[src].take(first, stop).copy() for src, _, first, stop in moves]
        sent += sum(packet.nbytes for packet in packets)
        for (_, dst, first, stop), packet in zip(moves, packets, strict=True):
            merge = held[dst].add if rnd.add else held[dst].put
            merge(first, stop, packet)
    return sent


def fresh_states(gradients: list[Array], seed: int = 0, name: str = "") -> list[State]:
    """Make each rank's state before its first launch, with its gradient, (numel,) float32."""
    same = {"ranks": len(gradients), "seed": seed, "step": 0, "name": name}
    return [{"gradient": g, "rank": r, **same} for r, g in enumerate(gradients)]


def run_method(
    method: Method, spec: BucketSpec, group: Group, states: list[State]
) -> dict[str, float]:
    """Run one launch on all ranks' states; each ends with its "result". Returns the decisions."""
    decisions: dict[str, float] = {}
    for phase in method.phases(spec, group):
        if isinstance(phase, Choice):
            decisions[phase.name] = phase.agreed(map(phase.vote, states))
        run_phase(resolved(phase, decisions.get(phase.name)), states)
    return decisions


def run_phase(phase: Phase, states: list[State]) -> None:
    """Take, exchange and give on all ranks."""
    held = [open_endpoint(phase, state) for state in states]
    exchange(phase.schedule, held)
    for state, each in zip(states, held, strict=True):
        phase.give(state, each.result())
