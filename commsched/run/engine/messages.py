"""Messages between two ranks: the communication thread sends in order and receives on arrival."""

from collections import defaultdict, deque
from typing import NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.placer import StreamQueue, next_head
from commsched.program.registry import STRATEGIES
from commsched.run.engine.board import Board, Key, WaitStatus
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.recorder import Recorder
from commsched.run.job.clock import now
from commsched.run.wire.device import HOST, ComputeDevice
from commsched.run.wire.path import Moving
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.units import nbytes


class Mail(Protocol):
    """The interface to the content of messages: computations make and read it."""

    def use_device(self, device: ComputeDevice) -> None:
        """Use arrays of this device for packets and their results from now on."""

    def compute(self, step: int, op: Op) -> None:
        """Perform a COMPUTE or APPLY whose inputs are complete."""

    def outgoing(self, step: int, op: Op) -> Array:
        """Return the content of a SEND, (uncoded,) uint8, unchanged until the send ends."""

    def incoming(self, step: int, op: Op, packet: Array) -> None:
        """Take the content of a RECV, (uncoded,) uint8."""


class Blank:
    """Messages of zeros: between emulated computations the content does not matter."""

    def __init__(self) -> None:
        self.use_device(HOST)

    def use_device(self, device: ComputeDevice) -> None:
        self._module = device.module
        self._zeros: Array = self._module.zeros(0, np.uint8)

    def compute(self, step: int, op: Op) -> None:
        """Compute nothing: zeros need no computation."""

    def outgoing(self, step: int, op: Op) -> Array:
        if len(self._zeros) < op.uncoded:
            self._zeros = self._module.zeros(op.uncoded, np.uint8)
        return self._zeros[: op.uncoded]

    def incoming(self, step: int, op: Op, packet: Array) -> None:
        """Drop the packet: nobody reads zeros."""


class Message(NamedTuple):
    """A message that is being sent or received."""

    step: int
    op: Op
    moving: Moving
    start: float  # when it was sent, or first announced


class MessageStreams:
    """The streams `send` and `receive` of one rank.

    A message leaves once the device has computed its inputs, not when they are queued.
    """

    def __init__(
        self,
        plan: Plan,
        comm: MPI.Intracomm,
        board: Board,
        recorder: Recorder,
        mail: Mail,
        device_queue: DeviceQueue,
        place: Placement = ON_HOST,
    ) -> None:
        self._board, self._recorder, self._mail = board, recorder, mail
        self._device_queue, self._place = device_queue, place
        mail.use_device(place.device)
        self.comm = comm.Dup()
        self._peers = _peers(plan, comm.rank)
        self._sends, self._receives = StreamQueue(), deque[tuple[int, Op]]()
        self.queues: dict[str, StreamQueue | deque[tuple[int, Op]]] = {
            "send": self._sends,
            "receive": self._receives,
        }
        self._free = 0.0  # the send stream is busy until then
        self._expected: dict[int, deque[tuple[int, Op]]] = defaultdict(deque)  # by rank
        self._leaving: Message | None = None
        self._coming: dict[int, Message] = {}  # by rank
        self.moved = now()  # time of the last progress

    @property
    def _any(self) -> bool:
        """Tell whether there was or is a message; plans that only exchange gradients have none."""
        return bool(self._sends or self._leaving or self._receives or self._expected)

    @property
    def busy(self) -> bool:
        """Tell whether a message may arrive, is under way, or can leave after the device's work."""
        if not self._any:
            return False
        coming = self._receives or self._coming or any(self._expected.values())
        return bool(coming or self._leaving or self._able())

    @property
    def idle(self) -> bool:
        """Tell whether nothing is left to do."""
        return not self.busy and not self._sends

    @property
    def leaving_since(self) -> list[float]:
        """Return the start of the oldest message that its receiver has not taken."""
        return [] if self._leaving is None else [self._leaving.start]

    def missing(self) -> list[Key]:
        """Return what the next message waits for; the caller holds the board's lock."""
        if self._leaving is not None:
            return []
        heads = self._sends.heads()
        return [key for step, op in heads for key in self._board.missing(step, op.after)]

    def progress(self) -> bool:
        """Make progress without waiting; return True if something happened."""
        if not self._any:
            return False
        moved = self._send()
        moved = self._receive() or moved
        if moved:
            self.moved = now()
        return moved

    def _send(self) -> bool:
        """Begin and end messages, one at a time, in the order of `program.placer`."""
        leaving = self._leaving
        if leaving is not None:
            if not leaving.moving.done():
                return False
            self._end("send", leaving.step, leaving.op, leaving.start)
            self._leaving, self._free = None, now()
        with self._board.lock:
            found = self._next()
        if found is None:
            return leaving is not None
        step, op = found
        begun = now()
        packet = self._mail.outgoing(step, op)
        assert packet.nbytes == op.nbytes, f"{op.name} has {packet.nbytes} B, not {op.nbytes}"
        peer = self._peers[op.peer]
        moving = self._place.path.lane(self.comm, op.tag).send(packet, peer)
        self._leaving = Message(step, op, moving, begun)
        return True

    def _next(self) -> tuple[int, Op] | None:
        """Take the next message to send, if one can leave."""
        able = [(step, op) for step, op in self._able() if self._device_queue.over(step, op.after)]
        if not able:
            return None
        ready = [self._board.when(step, op.after) for step, op in able]
        step, op = able[next_head(self._free, ready, [op for _, op in able])]
        self._sends.take(step, op)
        return step, op

    def _able(self) -> list[tuple[int, Op]]:
        """Return the first message of each urgency whose inputs are queued on the device."""
        heads = self._sends.heads()
        return [(step, op) for step, op in heads if self._board.ready(step, op.after)]

    def _receive(self) -> bool:
        """Receive announced messages, from each rank in its order."""
        moved = False
        while self._receives:
            step, op = self._receives.popleft()
            self._expected[self._peers[op.peer]].append((step, op))
        for peer, expected in self._expected.items():
            moved = self._from(peer, expected) or moved
        return moved

    def _from(self, peer: int, expected: deque[tuple[int, Op]]) -> bool:
        coming = self._coming.get(peer)
        if coming is None:
            coming = self._begin(peer, expected) if expected else None
            if coming is None:
                return False
            self._coming[peer] = coming
        if not coming.moving.done():
            return False
        del self._coming[peer]
        self._mail.incoming(coming.step, coming.op, coming.moving.packet)
        self._end("receive", coming.step, coming.op, coming.start)
        return True

    def _begin(self, peer: int, expected: deque[tuple[int, Op]]) -> Message | None:
        """Post the receive of an announced message, if any, in the order of steps."""
        status, start = MPI.Status(), now()
        if not self.comm.Iprobe(peer, MPI.ANY_TAG, status):
            return None
        tag = status.Get_tag()
        step, op = next((s, o) for s, o in expected if o.tag == tag)
        expected.remove((step, op))
        packet = self._place.device.module.empty(op.nbytes, np.uint8)
        moving = self._place.path.lane(self.comm, tag).receive(packet, peer)
        return Message(step, op, moving, start)

    def _end(self, stream: str, step: int, op: Op, start: float) -> None:
        end = now()
        sent = op.nbytes if op.kind is Kind.SEND else 0
        self._recorder.add(stream, op.name, step, start, end, sent)
        self._board.mark(step, op.name, end)

    def statuses(self) -> dict[str, WaitStatus]:
        """Return what each stream waits for, if it waits for another rank."""
        found = {}
        if self._leaving is not None:
            step, op, _, start = self._leaving
            what = f"waits for {nbytes(op.nbytes)} to rank {self._peers[op.peer]}"
            found["send"] = WaitStatus(step, op.name, what, start, True)
        for peer, expected in sorted(self._expected.items()):
            if expected or peer in self._coming:
                step, op = self._coming[peer][:2] if peer in self._coming else expected[0]
                what = f"waits for {nbytes(op.nbytes)} from rank {peer}"
                found[f"receive from {peer}"] = WaitStatus(step, op.name, what, self.moved, True)
        return found


def _peers(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return a rank's counterpart in every role; the rank itself if roles differ in size."""
    roles = STRATEGIES[plan.strategy].lower(plan, 0, {}).roles
    mine = next(role.ranks for role in roles if rank in role.ranks)
    place = mine.index(rank)
    return tuple(role.ranks[place] if len(role.ranks) == len(mine) else rank for role in roles)
