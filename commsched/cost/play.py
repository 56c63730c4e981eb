"""The price of a schedule, round by round: LogGP on send and receive ports, for all ranks at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsched.cost.pattern import Floats, Pattern, Places
from commsched.machine import Group, Machine
from commsched.methods import Payload
from commsched.schedule import Round, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What an exchange costs each member of its group."""

    end: Floats  # (p,) s, when its last send has left and its last receive is merged
    sent: Floats  # (p,) B handed to MPI
    messages: npt.NDArray[np.int64]  # (p,) sent


def play(
    schedule: Schedule, payload: Payload, machine: Machine, group: Group, start: Floats
) -> Played:
    """Price one exchange whose members arrive at `start`, (p,) s.

    A message leaves when the sender holds its data and its send port is free:
        sent     = max(data + encode, send port)
        arrived  = max(sent + o + L, receive port) + n G + o
        merged   = max(arrived, processor) + add or decode
    L, o [s], G [s/B] of the slower end's link, G also of a fair share of a NIC; n [B].
    Ports and processor serve one message at a time, in the order of the rounds.
    Source: Alexandrov et al., "LogGP", SPAA 1995; per-rank clocks as in Hoefler et al.,
    "LogGOPSim", HPDC 2010.
    """
    return _Play(schedule, payload, machine, group, start).run()


class _Play:
    """Clocks of all ranks while the rounds go by."""

    def __init__(
        self, schedule: Schedule, payload: Payload, machine: Machine, group: Group, start: Floats
    ) -> None:
        assert schedule.ranks == group.size == len(start)
        assert schedule.rounds is not None, "the MPI's own collectives have a closed form only"
        self.schedule, self.payload = schedule, payload
        self.places = Places(machine, group)
        self.rate = payload.rate(machine.device)
        self.start = start
        self.merged = start.copy()  # all received data is merged
        self.held = start  # what the current round's senders wait for
        self.held_round = 0
        self.send_port = start.copy()
        self.receive_port = start.copy()
        self.processor = start.copy()
        self.sent = np.zeros(len(start))
        self.messages = np.zeros(len(start), np.int64)
    def run(self) -> Played:
        assert self.schedule.rounds is not None
        payload, coding = self.payload, self.rate.encode > 0 or self.rate.decode > 0
        nothing = np.zeros(1)
        pattern: Pattern | None = None
        src = dst = None
        for number, rnd in enumerate(self.schedule.rounds()):
            if pattern is None or rnd.src is not src or rnd.dst is not dst:
                src, dst = rnd.src, rnd.dst
                pattern = self.places.pattern(rnd, self.schedule.ranks)
            self._wait_for_data(rnd, number)
            wire = payload.wire(rnd.first, rnd.stop, rnd.merged)
            raw = payload.raw(rnd.first, rnd.stop) if coding else nothing
            if pattern.whole:
                self._whole(rnd, pattern, wire, raw)
            else:
                self._some(rnd, pattern, wire, raw)
        end = np.maximum(np.maximum(self.send_port, self.merged), self.processor)
        return Played(end, self.sent, self.messages)

    def _wait_for_data(self, rnd: Round, number: int) -> None:
        """Set `held`: when each rank has merged what it received in the rounds it waits for."""
        waits = number if rnd.waits is None else rnd.waits
        if waits == number:
            self.held, self.held_round = self.merged, waits
        elif waits == 0:
            self.held, self.held_round = self.start, 0
        else:
            assert waits == self.held_round, "a round waits for rounds that nobody waited for yet"

    def _merging(self, rnd: Round, wire: Floats, raw: Floats) -> Floats | float:
        """Processor seconds for a received message."""
        rate = self.rate
        if rnd.add:
            return rate.fixed + wire * rate.add if rate.add else rate.fixed
        return rate.fixed + raw * rate.decode if rate.decode else 0.0

    def _whole(self, rnd: Round, pattern: Pattern, wire: Floats, raw: Floats) -> None:
        """Every rank sends and receives one message: the same as `_some`, without indexing."""
        ready = self.held
        if self.rate.encode:
            ready = np.maximum(ready, self.processor) + (self.rate.fixed + raw * self.rate.encode)
            self.processor = ready
        leaves = np.maximum(ready, self.send_port)
        busy = pattern.wire(wire)
        busy += pattern.overhead
        self.send_port = leaves + busy
        leaves += pattern.away
        arrives = leaves[pattern.back]
        np.maximum(arrives, self.receive_port, out=arrives)
        arrives += busy[pattern.back]
        self.receive_port = arrives
        merging = self._merging(rnd, wire, raw)
        merged = np.maximum(arrives, self.processor)
        merged += merging if isinstance(merging, float) else merging[pattern.back]
        self.processor = self.merged = merged
        self.sent += wire
        self.messages += 1

    def _some(self, rnd: Round, pattern: Pattern, wire: Floats, raw: Floats) -> None:
        """Some ranks send, some receive; each at most one message."""
        src, dst = pattern.src, pattern.dst
        ready = self.held[src]
        if self.rate.encode:
            coding = self.rate.fixed + raw * self.rate.encode
            ready = np.maximum(ready, self.processor[src]) + coding
            self.processor = self.processor.copy()
            self.processor[src] = ready
        leaves = np.maximum(ready, self.send_port[src])
        busy = pattern.wire(wire) + pattern.overhead
        self.send_port[src] = leaves + busy
        arrives = np.maximum(leaves + pattern.away, self.receive_port[dst]) + busy
        self.receive_port = self.receive_port.copy()
        self.receive_port[dst] = arrives
        merged = np.maximum(arrives, self.processor[dst]) + self._merging(rnd, wire, raw)
        # Copies, not changes in place: `held` may still be one of these.
        self.processor, self.merged = self.processor.copy(), self.merged.copy()
        self.processor[dst] = self.merged[dst] = merged
        self.sent[src] += wire
        self.messages[src] += 1
