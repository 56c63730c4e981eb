"""The compute stream of a rank: emulated operations that others wait for, step after step."""

import time
from collections.abc import Callable

from commsched.plan import Plan
from commsched.program import Op
from commsched.run.clock import now
from commsched.run.engine import Engine
from commsched.run.worker import Worker
from commsched.strategies import STRATEGIES

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
        for op in engine.submit(program):
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
    end = ready + worker.seconds(step, op.seconds)
    if op.name in engine.watched:
        if end - now() > QUIET:
            engine.recorder.flush()  # writing takes the interpreter from the other streams
        time.sleep(max(0.0, end - now()))
        board.mark(step, op.name, now())
    engine.recorder.add("compute", op.name, step, ready, end)
    return end
