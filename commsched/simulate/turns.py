"""Turns: the computations of a microbatch in a stage, and the sums of its ranks between them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.program.model import Kind, Op, Role

MOVING = (Kind.COMPUTE, Kind.SEND, Kind.RECV)


def moving(role: Role) -> list[Op]:
    """Return the operations of a role that are placed before its other exchanges."""
    return [op for op in role.ops if op.kind in MOVING or op.turn is not None]


class SumCost(NamedTuple):
    """What one operation of a sum costs a rank."""

    seconds: float
    sent: float  # B


class Part(NamedTuple):
    """A computation, or an operation of a sum: from its input's end on."""

    op: Op
    own: float  # s that jitter stretches
    common: float  # s that are equal on all ranks of a team
    waits: bool  # begins to progress once the last rank of the team is there
    sent: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Operations of one turn, one after the other, or a single message.

    All ranks of a team go through a turn's sums together: with c s of computation before the first
    sum, C s between the first and the last, b s behind it and X s of sums

        end = max over the team of (start + c f) + X + C max over the team of f + b f

    f = the jitter of a rank in this step. Holds since a rank's jitter stays the same in a step.
    """

    role: int
    parts: tuple[Part, ...]

    @property
    def first(self) -> Op:
        return self.parts[0].op

    @property
    def last(self) -> Op:
        return self.parts[-1].op

    def times(self) -> tuple[bool, float, float, float, float]:
        """Return whether there is a sum, and c, C, X and b."""
        sums = [i for i, part in enumerate(self.parts) if part.waits]
        if not sums:
            return False, sum(part.own for part in self.parts), 0.0, 0.0, 0.0
        own = [part.own for part in self.parts]
        cuts = own[: sums[0]], own[sums[0] : sums[-1]], own[sums[-1] :]
        opening, middle, closing = map(sum, cuts)
        return True, opening, middle, sum(part.common for part in self.parts), closing

    def spans(
        self, start: Floats, end: Floats, factor: Floats, width: int
    ) -> Iterator[tuple[Part, Floats, Floats, Ints]]:
        """Yield each operation's start and end, (columns,) s, and the column that came last."""
        columns, now = np.arange(len(start)), start
        for number, part in enumerate(self.parts):
            begin, last = now, columns
            if part.waits:
                teams = begin.reshape(-1, width)
                slowest = teams.argmax(axis=1)
                last = np.repeat(np.arange(len(teams)) * width + slowest, width)
                now = begin[last] + part.common
            else:
                now = begin + part.own * factor + part.common
            # The end was computed in one sum, so that the last digits may differ.
            now = end if number == len(self.parts) - 1 else np.minimum(now, end)
            yield part, begin, now, last


def chains(
    roles: Sequence[Role], cost: Callable[[Op], SumCost], handover: float, width: int
) -> Iterator[Chain]:
    """Yield the turns and messages of all roles; a RECV is the other end of its SEND.

    handover [s]: mean until another thread takes up what is ready; a team waits for its last rank.
    """
    latest = handover * sum(1 / k for k in range(1, width + 1))
    for number, role in enumerate(roles):
        parts: list[Part] = []
        for op in moving(role):
            if op.kind is Kind.RECV:
                continue
            if parts and (op.turn is None or op.turn != parts[-1].op.turn):
                yield Chain(number, tuple(parts))
                parts = []
            if op.kind in MOVING:
                late = handover if parts else 0.0
                seconds = op.seconds if op.kind is Kind.COMPUTE else 0.0
                parts.append(Part(op, seconds, late, False, float(op.nbytes)))
                continue
            seconds, sent = cost(op)
            waits = op.kind is Kind.EXCHANGE
            parts.append(Part(op, 0.0, seconds + (latest if waits else 0.0), waits, sent))
        if parts:
            yield Chain(number, tuple(parts))
