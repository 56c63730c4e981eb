"""Operations of several roles in the making: a message is written at both of its ends at once."""

from collections import defaultdict
from collections.abc import Sequence

from commsched.program.model import After, Kind, Op, Program, Role


class Draft:
    """The roles of one step; `groups` are their ranks, equally many where messages go."""

    def __init__(self, groups: Sequence[tuple[int, ...]]) -> None:
        self._groups = tuple(groups)
        self._ops: list[list[Op]] = [[] for _ in groups]
        self._sent: dict[tuple[int, int], int] = defaultdict(int)

    def add(self, role: int, *ops: Op) -> None:
        """Append operations to a role."""
        self._ops[role] += ops

    def message(
        self, name: str, source: int, to: int, nbytes: int, after: After, urgency: int = 0
    ) -> After:
        """Send `nbytes` from each rank of a role to its counterpart; what the receiver waits for.

        Messages from one role to another are numbered in the order in which they are drafted.
        """
        assert len(self._groups[source]) == len(self._groups[to])
        tag = self._sent[source, to]
        self._sent[source, to] += 1
        ends = [
            (source, to, Kind.SEND, f"send/{name}", f"recv/{name}", "send", (after,)),
            (to, source, Kind.RECV, f"recv/{name}", f"send/{name}", "receive", ()),
        ]
        for role, peer, kind, own, match, stream, inputs in ends:
            op = Op(
                kind=kind,
                name=own,
                stream=stream,
                after=inputs,
                peer=peer,
                match=match,
                tag=tag,
                nbytes=nbytes,
                urgency=urgency,
            )
            self._ops[role].append(op)
        return After(f"recv/{name}")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles as they are now."""
        pairs = zip(self._groups, self._ops, strict=True)
        return tuple(Role(ranks=ranks, ops=tuple(ops)) for ranks, ops in pairs)

    def program(self, step: int) -> Program:
        """The roles as one step."""
        return Program(step=step, roles=self.roles)
