"""The draft of a step's operations by role; a message adds the operations at both of its ends."""

from collections import Counter
from collections.abc import Sequence

from commsched.program.message_coding import MessageCoding
from commsched.program.model import After, Hop, Kind, Op, Role


class Draft:
    """The roles of one step and their ranks; roles that exchange messages are equally large.

    Stages are dealt to K roles in turn: stage k is a part of role k mod K. `coding`: of messages.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]], coding: MessageCoding) -> None:
        self._groups, self._coding = tuple(groups), coding
        self._ops: list[list[Op]] = [[] for _ in groups]
        self._sent: Counter[tuple[int, int]] = Counter()

    def add(self, stage: int, *ops: Op) -> None:
        """Append operations to the role of a stage."""
        self._ops[stage % len(self._ops)] += ops

    def message(self, hop: Hop, nbytes: int, after: After, urgency: int = 0) -> After:
        """Send `nbytes`, coded, from each rank of a stage to its counterpart; returns what arrives.

        Messages from one role to another are numbered in the order in which they are drafted.
        """
        source, to = hop.source % len(self._ops), hop.to % len(self._ops)
        assert source != to, f"{hop} stays on its rank"
        assert len(self._groups[source]) == len(self._groups[to])
        tag = self._sent[source, to]
        self._sent[source, to] += 1
        coded = self._coding.of(nbytes)
        for role, peer, kind, match, stream, inputs, seconds in (
            (source, to, Kind.SEND, Kind.RECV, "send", (after,), coded.encode),
            (to, source, Kind.RECV, Kind.SEND, "receive", (), coded.decode),
        ):
            op = Op(
                kind=kind,
                name=f"{kind}/{hop}",
                stream=stream,
                after=inputs,
                peer=peer,
                match=f"{match}/{hop}",
                hop=hop,
                tag=tag,
                nbytes=coded.nbytes,
                codec=coded.codec,
                values=coded.values,
                width=self._coding.width,
                seconds=seconds,
                urgency=urgency,
            )
            self._ops[role].append(op)
        return received(hop)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles drafted so far."""
        pairs = zip(self._groups, self._ops, strict=True)
        return tuple(Role(ranks=ranks, ops=tuple(ops)) for ranks, ops in pairs)


def received(hop: Hop) -> After:
    """Return the arrival of a message."""
    return After(f"{Kind.RECV}/{hop}")
