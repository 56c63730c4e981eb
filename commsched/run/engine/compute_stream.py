"""The compute stream of a rank: emulated operations that others wait for, step after step."""

import time
from collections import deque
from collections.abc import Callable, Iterator

from commsched.plan.model import Plan
from commsched.program.model import Op
from commsched.program.registry import STRATEGIES
from commsched.run.engine.board import Board
from commsched.run.engine.engine import Engine
from commsched.run.engine.worker import Worker
from commsched.run.job.clock import now

QUIET = 5e-3  # s of sleep ahead that are enough to write spans


def run_steps(
    plan: Plan,
    engine: Engine,
    worker: Worker,
    steps: int,
    start: float | None = None,
    between: Callable[[int], bool] = lambda _: False,
) -> None:
    """Run the compute stream in this thread, from `start` on this rank's clock, and all exchanges.

    `between` is called after each step; True where the next one starts afresh.
    """
    clock = now() if start is None else start
    for step in range(steps):
        plan = engine.plan  # `between` may have changed it
        program = STRATEGIES[plan.strategy].lower(plan, step, engine.buckets.decisions)
        ops = engine.submit(program)
        if any(op.urgency for op in ops):
            clock = run_ready(engine, worker, step, ops, clock)
        else:
            for op in ops:
                clock = _compute(engine, worker, step, op, clock)
        if between(step):
            clock = now()
    engine.drain()


def _compute(engine: Engine, worker: Worker, step: int, op: Op, ready: float) -> float:
    """Emulate one operation that may start at `ready`; returns when it ends.

    Like an accelerator that waits for events, it starts at the moment its inputs were there, and
    ends at an absolute deadline: a late wake-up of this thread does not add up. The thread sleeps
    only where another operation waits for the end.
    """
    board = engine.board
    if op.after:
        board.wait("compute", step, op, deadline=True)
        ready = max(ready, board.when(step, op.after))
    return finished(engine, worker, step, op, ready)


def finished(engine: Engine, worker: Worker, step: int, op: Op, ready: float) -> float:
    """Emulate one operation from `ready` on; returns when it ends."""
    board = engine.board
    engine.mail.compute(step, op)
    end = ready + worker.seconds(step, op.seconds)
    if op.name in engine.watched:
        if end - now() > QUIET:
            engine.recorder.flush()  # writing takes the interpreter from the other streams
        time.sleep(max(0.0, end - now()))
        board.mark(step, op.name, now())
    engine.recorder.add("compute", op.name, step, ready, end)
    return end


def run_ready(engine: Engine, worker: Worker, step: int, ops: list[Op], clock: float) -> float:
    """Emulate a step whose messages decide what comes next; returns when it ends.

    Once the stream is free, of the first operations of each urgency that goes whose inputs arrived
    first; of those that have arrived, the most urgent.
    """
    board = engine.board
    queues = by_urgency(ops)
    while any(queues):
        time.sleep(max(0.0, clock - now()))  # what arrives until then counts
        op, begin = _next(board, step, queues, clock)
        clock = finished(engine, worker, step, op, begin)
    return clock


def in_turn(board: Board, step: int, ops: list[Op]) -> Iterator[Op]:
    """The operations of a step, each when the one before is done; see `run_ready`."""
    queues = by_urgency(ops)
    if len(queues) == 1:
        yield from ops
        return
    while any(queues):
        yield _next(board, step, queues, now())[0]


def by_urgency(ops: list[Op]) -> list[deque[Op]]:
    """Operations that are equally urgent, in their order; the most urgent first."""
    return [
        deque(op for op in ops if op.urgency == urgency)
        for urgency in sorted({op.urgency for op in ops})
    ]


def _next(board: Board, step: int, queues: list[deque[Op]], clock: float) -> tuple[Op, float]:
    """Take what a stream that is free at `clock` does next, and when it begins."""
    heads = [queue[0] for queue in queues if queue]
    board.wait_for_any("compute", step, heads)
    begins = {
        op.urgency: max(clock, board.when(step, op.after))
        for op in heads
        if not board.missing(step, op.after)
    }
    urgency = min(begins, key=lambda number: (begins[number], number))
    (queue,) = (queue for queue in queues if queue and queue[0].urgency == urgency)
    return queue.popleft(), begins[urgency]
