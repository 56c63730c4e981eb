"""One pipeline's step, turn by turn in plain numbers: quicker than arrays for a few pipelines."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from commsched.program.placer import TOGETHER


class Turns(NamedTuple):
    """The chains of a step, see `PipelineMessages`: each is a turn of a role, or a message."""

    queues: list[list[int]]  # chains that keep their order
    lanes: list[int]  # of queues: the compute of each role, then the sends of each
    urgency: list[int]  # of queues
    queue: list[int]  # of chains
    place: list[int]  # of chains in their queues
    next: list[list[int]]  # chains that wait for a chain
    missing: list[int]  # inputs of a chain
    waiting: list[int]  # chains with inputs of earlier steps
    role: list[int]
    peer: list[int]  # role that a message goes to
    wire: list[int]
    message: list[int]  # number among the messages; -1: a turn
    sums: list[bool]
    opening: list[float]  # s, see `Chain.times`
    middle: list[float]
    common: list[float]
    closing: list[float]


class PipelineState(NamedTuple):
    """The state of a pipeline before a step, s."""

    free: list[float]  # by lane
    port: list[float]  # by role
    factor: list[float]  # by role, on compute
    busy: list[float]  # by wire
    away: list[float]
    ready: list[float]  # by waiting chain


class PlacedChains(NamedTuple):
    """When chains begin and end, and messages arrive; `free` and `port` after the step."""

    start: list[float]
    end: list[float]
    begun: list[float]
    arrived: list[float]
    free: list[float]
    port: list[float]


def place_one(turns: Turns, pipeline: PipelineState) -> PlacedChains:
    """Place the chains of one pipeline in the order in which they begin; see `serve_next`."""
    run = _ChainRun(turns, pipeline)
    run.all()
    return run.placed


class _ChainRun:
    """The chains that can begin, and what was placed."""

    def __init__(self, turns: Turns, pipeline: PipelineState) -> None:
        self.turns, self.pipeline = turns, pipeline
        count, messages = len(turns.queue), max(turns.message, default=-1) + 1
        self.ready = [0.0] * count
        for chain, moment in zip(turns.waiting, pipeline.ready, strict=True):
            self.ready[chain] = moment
        self.missing = [*turns.missing]
        self.at = [0] * len(turns.queues)
        self.of_lane: list[list[int]] = [[] for _ in pipeline.free]
        for queue, lane in enumerate(turns.lanes):
            self.of_lane[lane].append(queue)
        self.placed = PlacedChains(
            [0.0] * count,
            [0.0] * count,
            [0.0] * messages,
            [0.0] * messages,
            [*pipeline.free],
            [*pipeline.port],
        )
        # A pair is out of date if its queue's head begins at another moment by now.
        heads = (self._head(queue) for queue in range(len(turns.queues)))
        self.heap = [head for head in heads if head is not None]
        heapify(self.heap)

    def _head(self, queue: int) -> tuple[float, int] | None:
        """Return when the first chain of a queue can begin, with its urgency; None: not known."""
        turns, place = self.turns, self.at[queue]
        if place == len(turns.queues[queue]):
            return None
        chain = turns.queues[queue][place]
        if self.missing[chain]:
            return None
        begin = max(self.placed.free[turns.lanes[queue]], self.ready[chain])
        return begin + TOGETHER * turns.urgency[queue], queue

    def _push(self, queue: int) -> None:
        head = self._head(queue)
        if head is not None:
            heappush(self.heap, head)

    def all(self) -> None:
        """Place every chain."""
        turns, left = self.turns, len(self.turns.queue)
        while left:
            assert self.heap, "operations wait for each other"
            head = heappop(self.heap)
            queue = head[1]
            if head != self._head(queue):
                continue
            chain = turns.queues[queue][self.at[queue]]
            self.at[queue] += 1
            left -= 1
            done = self._place(chain, turns.lanes[queue])
            for other in self.of_lane[turns.lanes[queue]]:
                self._push(other)
            self._tell(turns.next[chain], done)

    def _place(self, chain: int, lane: int) -> float:
        """Place a chain; return when those that wait for it may begin."""
        turns, pipeline, placed = self.turns, self.pipeline, self.placed
        start = max(placed.free[lane], self.ready[chain])
        message = turns.message[chain]
        if message < 0:
            factor = pipeline.factor[turns.role[chain]]
            end = start + turns.opening[chain] * factor
            if turns.sums[chain]:
                end = end + turns.common[chain] + turns.middle[chain] * factor
                end = end + turns.closing[chain] * factor
            done = end
        else:
            wire, peer = turns.wire[chain], turns.peer[chain]
            port = placed.port[peer]
            end = start + pipeline.busy[wire]
            done = max(start + pipeline.away[wire], port) + pipeline.busy[wire]
            placed.begun[message] = max(start, port)
            placed.arrived[message] = placed.port[peer] = done
        placed.start[chain], placed.end[chain], placed.free[lane] = start, end, end
        return done

    def _tell(self, others: Sequence[int], done: float) -> None:
        """Note that an input of chains has ended."""
        turns = self.turns
        for chain in others:
            self.ready[chain] = max(self.ready[chain], done)
            self.missing[chain] -= 1
            queue = turns.queue[chain]
            if not self.missing[chain] and turns.place[chain] == self.at[queue]:
                self._push(queue)
