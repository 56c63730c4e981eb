"""Turns: the computations of a microbatch in a stage, and the sums of its ranks between them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from commsched.arrays import Bools, Floats
from commsched.program.model import Kind, Op, Role

MOVING = (Kind.COMPUTE, Kind.SEND, Kind.RECV)


def moving(role: Role) -> list[Op]:
    """Return the operations of a role that are placed before its other exchanges."""
    return [op for op in role.ops if op.kind in MOVING or op.turn is not None]


class SumCost(NamedTuple):
    """What one operation of a sum costs a rank."""

    seconds: float
    sent: float  # B


class TurnPart(NamedTuple):
    """A computation, or an operation of a sum: from its input's end on."""

    op: Op
    own: float  # s that jitter stretches
    common: float  # s that are equal on all ranks of a team
    waits: bool  # begins to progress once the last rank of the team is there
    sent: float


class Begins(NamedTuple):
    """When the operations of a chain begin and the last one ends, (operations + 1,) each.

    Each moment is a sum: A times the rank's jitter, B times the largest jitter of its team, and
    C s, counted from the chain's start, or from when the last rank begins the first sum.
    """

    own: Floats  # A, s
    slow: Floats  # B, s
    common: Floats  # C, s
    behind: Bools  # the first sum: then counted from there


@dataclass(frozen=True, slots=True)
class Chain:
    """Operations of one turn, one after the other, or a single message.

    All ranks of a team go through a turn's sums together: with c s of computation before the first
    sum, C s between the first and the last, b s behind it and X s of sums

        end = max over the team of (start + c f) + X + C max over the team of f + b f

    f = the jitter of a rank in this step. Holds since a rank's jitter stays the same in a step.
    """

    role: int
    parts: tuple[TurnPart, ...]
    begins: Begins = field(init=False)
    sums: tuple[int, ...] = field(init=False)  # which parts wait for the team
    waits: Bools = field(init=False)  # the same, (parts,)
    sent: Floats = field(init=False)  # (parts,) B

    def __post_init__(self) -> None:
        waits = np.array([part.waits for part in self.parts])
        for name, value in (
            ("begins", _begins(self.parts)),
            ("waits", waits),
            ("sums", tuple(np.flatnonzero(waits).tolist())),
            ("sent", np.array([part.sent for part in self.parts])),
        ):
            object.__setattr__(self, name, value)

    @property
    def first(self) -> Op:
        return self.parts[0].op

    @property
    def last(self) -> Op:
        return self.parts[-1].op

    def times(self) -> tuple[bool, float, float, float, float]:
        """Return whether there is a sum, and c, C, X and b."""
        own, slow, *_ = self.begins
        if not self.sums:
            return False, float(own[-1]), 0.0, 0.0, 0.0
        common = sum(part.common for part in self.parts)
        return True, float(own[self.sums[0]]), float(slow[-1]), common, float(own[-1])


def _begins(parts: Sequence[TurnPart]) -> Begins:
    own = slow = common = 0.0
    behind, rows = False, []
    for part in parts:
        rows.append((own, slow, common, behind))
        if part.waits:
            slow = slow + own if behind else 0.0
            common = common if behind else 0.0
            own, behind = 0.0, True
        own, common = own + part.own, common + part.common
    rows.append((own, slow, common, behind))
    table = np.array(rows, np.float64)
    return Begins(table[:, 0], table[:, 1], table[:, 2], table[:, 3] > 0)


def chains(
    roles: Sequence[Role], cost: Callable[[Op], SumCost], handover: float, width: int
) -> Iterator[Chain]:
    """Yield the turns and messages of all roles; a RECV is the other end of its SEND.

    handover [s]: mean until another thread takes up what is ready; a team waits for its last rank.
    """
    latest = handover * sum(1 / k for k in range(1, width + 1))
    for number, role in enumerate(roles):
        parts: list[TurnPart] = []
        for op in moving(role):
            if op.kind is Kind.RECV:
                continue
            if parts and (op.turn is None or op.turn != parts[-1].op.turn):
                yield Chain(number, tuple(parts))
                parts = []
            if op.kind in MOVING:
                late = handover if parts else 0.0
                seconds = op.seconds if op.kind is Kind.COMPUTE else 0.0
                parts.append(TurnPart(op, seconds, late, False, float(op.nbytes)))
                continue
            seconds, sent = cost(op)
            waits = op.kind is Kind.EXCHANGE
            parts.append(TurnPart(op, 0.0, seconds + (latest if waits else 0.0), waits, sent))
        if parts:
            yield Chain(number, tuple(parts))
