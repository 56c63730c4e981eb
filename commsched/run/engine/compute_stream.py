"""The compute stream of a rank: emulated operations, step after step."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from commsched.plan.model import Plan
from commsched.program.model import Op
from commsched.program.placer import StreamQueue, next_head
from commsched.program.registry import STRATEGIES
from commsched.run.engine.board import Board
from commsched.run.engine.engine import Engine
from commsched.run.engine.worker import Worker
from commsched.run.job.clock import now

QUIET = 5e-3  # least s of a coming sleep in which to write spans
WORK = 2**14  # float32 elements, in a core's cache, that spinning compute works on
GROWS = 1.002  # factor by which the running median follows each product's seconds
FIRST = 20e-3  # s of products that measure ordinary interrupts
LONG = 2.0  # in medians: a longer product was interrupted


def run_steps(
    plan: Plan,
    engine: Engine,
    worker: Worker,
    steps: int,
    start: float | None = None,
    between: Callable[[int], bool] = lambda _: False,
    core: "Core | None" = None,
) -> None:
    """Run the compute stream in this thread, from `start` on this rank's clock, and all exchanges.

    `between` is called after each step; it returns True if the clock restarts before the next step.
    core: the emulated core of layers that occupy one.
    """
    clock = now() if start is None else start
    engine.board.occupies_cores = plan.net.occupies_cores  # otherwise compute is emulated by sleep
    core = core or Core()
    for step in range(steps):
        plan = engine.plan  # `between` may have changed it
        program = STRATEGIES[plan.strategy].lower(plan, step, engine.buckets.decisions)
        ops = engine.submit(program)
        core.begin()
        clock = _run_step(engine, worker, step, ops, clock, core)
        if between(step):
            clock = now()
    engine.drain()


def _run_step(
    engine: Engine, worker: Worker, step: int, ops: list[Op], clock: float, core: "Core"
) -> float:
    """Emulate the operations of a step on a stream that is free at `clock`; return their end.

    As on an accelerator that waits for events, an operation starts when its inputs are complete and
    ends at an absolute deadline, so late wake-ups of this thread do not add up. If the order of the
    operations is known, the thread wakes up only for the end of those that others wait for.
    """
    board = engine.board
    if engine.plan.net.occupies_cores or len({op.urgency for op in ops}) > 1:
        queue = StreamQueue((step, op) for op in ops)
        while queue:
            op, begin = _next(board, queue, clock)
            clock = _emulate(engine, worker, step, op, begin, core)
        return clock
    for run in _runs(ops, engine.watched):
        board.wait_for_all("compute", step, run)
        for op in run:
            begin = max(clock, board.when(step, op.after))
            clock = _emulate(engine, worker, step, op, begin, core)
    return clock


def _runs(ops: list[Op], watched: set[str]) -> Iterator[list[Op]]:
    """Cut operations into runs that end with one that others wait for."""
    run: list[Op] = []
    for op in ops:
        run.append(op)
        if op.name in watched:
            yield run
            run = []
    if run:
        yield run


def _emulate(
    engine: Engine, worker: Worker, step: int, op: Op, begin: float, core: "Core"
) -> float:
    """Emulate an operation and return its end; sleep until then if others wait for it.

    For a net that occupies cores, an operation begins when this thread is awake and computes on a
    core.
    """
    engine.mail.compute(step, op)
    end = begin + (seconds := worker.seconds(step, op.seconds))
    if engine.plan.net.occupies_cores:
        begin = now()
        core.spin(seconds * engine.plan.machine.alone)  # net's seconds: all ranks compute
        end = now()
    if op.name in engine.watched:
        if end - now() > QUIET:
            engine.recorder.flush()  # while it sleeps: writing delays the other streams
        time.sleep(max(0.0, end - now()))
        engine.board.mark(step, op.name, now())
    engine.recorder.add("compute", op.name, step, begin, end)
    return end


class Core:
    """An emulated core that the layers of a step occupy with work in this thread.

    The work is products of short arrays. A product counts as the processor time that it takes with
    only the system's ordinary interrupts. Further interrupts, such as for the packets of an
    exchange, are not work, although the system counts them as this thread's time. The time to
    record a layer is taken off the next layer. NumPy computes without the interpreter's lock, as
    the layers of a net do.
    """

    def __init__(self) -> None:
        self.interrupted = 0.0  # s of this thread's time taken by interrupts so far
        self._values = np.ones(WORK, np.float32)
        self._usual = 0.0  # s of one product, the median
        # s of this thread's time per second of work without interrupts; 0: not known yet
        self._ordinary = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._since = time.thread_time()  # thread time at the end of the last layer
        self._over = 0.0  # s of work beyond the layers so far

    def spin(self, seconds: float) -> None:
        """Keep the core busy until this layer, after those before it, has had its `seconds`.

        The first call measures ordinary interrupts, so no exchange may be under way.
        """
        if not self._ordinary:
            self._ordinary = 1.0
            self.spin(FIRST)
            self._ordinary += self.interrupted / FIRST
            self.interrupted = 0.0
            self.begin()
        before = time.thread_time()
        self._over += before - self._since - seconds
        while self._over < 0.0:
            np.multiply(self._values, self._values, out=self._values)
            after = time.thread_time()
            took = after - before
            self._usual = self._usual * (GROWS if took > self._usual else 1 / GROWS) or took
            worth = self._ordinary * (took if took < LONG * self._usual else self._usual)
            self.interrupted += took - worth
            self._over += worth
            before = after
        self._since = before


def in_turn(board: Board, step: int, ops: list[Op]) -> Iterator[Op]:
    """Yield a step's operations, each once the previous one and its inputs are done."""
    queue = StreamQueue((step, op) for op in ops)
    while queue:
        yield _next(board, queue, now())[0]


def _next(board: Board, queue: StreamQueue, clock: float) -> tuple[Op, float]:
    """Take the next operation of a stream that is free at `clock`, and its start."""
    heads = queue.heads()
    step, ops = heads[0][0], [op for _, op in heads]
    if len(ops) > 1:
        time.sleep(max(0.0, clock - now()))  # inputs that arrive during the sleep count
    board.wait_for_any("compute", step, ops)
    able = [op for op in ops if board.ready(step, op.after)]
    ready = [board.when(step, op.after) for op in able]
    chosen = next_head(clock, ready, able) if len(able) > 1 else 0
    queue.take(step, able[chosen])
    return able[chosen], max(clock, ready[chosen])
