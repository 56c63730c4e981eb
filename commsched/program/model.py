"""Operations, their streams and dependencies: the program that is simulated and executed."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

# Coding has a stream for each direction: with a single stream, the next bucket's encode would
# wait for this bucket's decode, which waits for its exchange.
STREAMS = ("compute", "encode", "inside", "between", "decode", "send", "receive")


def is_exchange_stream(stream: str) -> bool:
    """Tell whether a stream carries exchanges."""
    return stream in ("inside", "between")


class Kind(StrEnum):
    """The kinds of operations."""

    COMPUTE = "compute"  # forward or backward of a layer or a stage, see `Op.turn`
    ENCODE = "encode"  # gather the bucket's pieces, the phase's `take`, whole-bucket encoding
    EXCHANGE = "exchange"  # the phase's schedule
    DECODE = "decode"  # the phase's `give`; after the last phase the bucket's result is there
    DECIDE = "decide"  # the group agrees on a number
    SEND = "send"  # a message to one rank of another role
    RECV = "recv"  # the other end of a SEND
    APPLY = "apply"  # optimiser step on the bucket's tensors
    MERGE = "merge"  # a stale average into the parameters


CODINGS = (Kind.ENCODE, Kind.DECODE, Kind.MERGE)  # a rank's own work on a bucket


class After(NamedTuple):
    """A dependency on an operation of this step, or of an earlier one."""

    name: str
    steps_back: int = 0


class Turn(NamedTuple):
    """A computation: forward or backward, and its microbatch."""

    backward: bool
    microbatch: int = 0
    again: bool = False  # a second backward, from the loss of the next stage
    chunk: int = 0  # which of its rank's stages, if stages are interleaved


class Hop(NamedTuple):
    """The content of a message between stages: the activations or gradient of a microbatch."""

    source: int  # stage
    to: int  # stage
    microbatch: int

    def __str__(self) -> str:
        return f"s{self.source}-s{self.to}/m{self.microbatch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a role; `name` is its identity within the step and a label for people."""

    kind: Kind
    name: str
    stream: str
    after: tuple[After, ...] = ()
    seconds: float = 0.0  # compute, apply, and coding of a message, without jitter
    paces: tuple[float, ...] = ()  # factors of `seconds` of the role's ranks, repeated in turn
    layer: str = ""  # for COMPUTE: the layer, or the first layer of the stage
    turn: Turn | None = None  # compute
    launch: int = -1  # index in the plan, for exchanges and their coding; -1: of all ranks
    phase: int = 0  # of the launch's method
    team: int | None = None  # only this one of the launch's teams takes part; None: all do
    root: int | None = None  # member of each team that broadcasts; None: no broadcast
    alone: bool = False  # decode: this rank's own gradient, which was not exchanged, is the result
    waited: int | None = None  # merge: steps since the sum was sent; None: it replaces parameters
    # Operations of a stream and step with equal urgency keep their order. Among the first operation
    # of each urgency, the one whose inputs arrived first is next; if the inputs of several have
    # arrived, the most urgent is next: 0 before 1.
    urgency: int = 0
    # send and recv
    peer: int = 0  # role at the other end; its k-th rank talks to the k-th rank here
    match: str = ""  # name of the operation at the other end
    hop: Hop | None = None
    tag: int = 0  # number among the messages from one rank to another
    nbytes: int = 0
    codec: str = ""  # of the message; "": its values travel as they are
    values: int = 0  # of a coded message
    width: int = 0  # B of one of these values, uncoded

    @property
    def uncoded(self) -> int:
        """Return the B of a message's content."""
        return self.values * self.width if self.codec else self.nbytes


def by_name(ops: Iterable[Op]) -> dict[str, Op]:
    """Return the first operation of each name."""
    found: dict[str, Op] = {}
    for op in ops:
        found.setdefault(op.name, op)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Ranks with equal operations; operations of a stream are in order, see `Op.urgency`."""

    ranks: tuple[int, ...]
    ops: tuple[Op, ...]

    @property
    def computing(self) -> float:
        """Return the seconds of compute of a step, of a rank whose pace is 1."""
        return sum(op.seconds for op in self.ops if op.kind in (Kind.COMPUTE, Kind.APPLY))

    def ops_of(self, rank: int) -> tuple[Op, ...]:
        """Return the operations of a rank, with its own seconds."""
        if not any(op.paces for op in self.ops):
            return self.ops
        place = self.ranks.index(rank)
        return tuple(
            replace(op, seconds=op.seconds * op.paces[place % len(op.paces)], paces=())
            if op.paces
            else op
            for op in self.ops
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of all ranks."""

    step: int
    roles: tuple[Role, ...]
    reach: int = 1  # steps back that an operation of this or a later step may depend on

    def role_of(self, rank: int) -> Role:
        """Return the role of a rank, with its own seconds."""
        role = next(role for role in self.roles if rank in role.ranks)
        ops = role.ops_of(rank)
        return role if ops is role.ops else replace(role, ops=ops)
