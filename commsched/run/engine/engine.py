"""The engine of one rank: it runs programs in coding threads and the communication thread."""

import sys
import threading
from collections import deque

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.plan.model import Plan
from commsched.program.model import Op, Program
from commsched.program.placer import StreamQueue
from commsched.program.registry import STRATEGIES
from commsched.run.engine import short_slice
from commsched.run.engine.board import Board, Stopped, WaitStatus
from commsched.run.engine.buckets import Buckets
from commsched.run.engine.coded_mail import CodedMail
from commsched.run.engine.communication_thread import Communication
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.last_operations import LastOperations
from commsched.run.engine.messages import Blank, Mail
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Roles
from commsched.run.job.clock import now
from commsched.run.wire.placement import ON_HOST, Placement

# s after which a thread asks for the interpreter; measured in plots/benches.md. Python's default
# of 5 ms delays exchanges. If ranks share cores, the thread that holds the interpreter may be
# without a core, and a thread that asks often takes that core.
SWITCH, SWITCH_CROWDED = 0.1e-3, 1e-3
_usual: list[float] = []  # s, one per running engine: the interval before the first one


class Engine:
    """The streams of one rank. Compute belongs to the caller; the rest runs in threads."""

    def __init__(
        self,
        plan: Plan,
        comm: MPI.Intracomm,
        roles: Roles,
        recorder: Recorder,
        timeout: float,
        mail: Mail | None = None,
        place: Placement = ON_HOST,
        option: str = "--timeout",  # name of the user's option for the timeout
    ) -> None:
        self.plan = plan
        self.board = Board()
        self.recorder = recorder
        recorder.last = self._kept = LastOperations(plan, comm, recorder.timeline)
        self.device_queue = DeviceQueue(place.device, recorder)
        self.buckets = Buckets(plan, comm.rank, roles, self.device_queue)
        self._rank = comm.rank
        self.mail = CodedMail(mail or Blank(), plan, comm.rank)
        self.communication = Communication(
            plan, comm, self.board, self.buckets, recorder, timeout, self.mail, place, option
        )
        self._coding: dict[str, deque[tuple[int, Op]]] = {"encode": deque(), "decode": deque()}
        self._last: list[tuple[int, str]] = []  # submitted operations that may not be done yet
        self._threads: list[threading.Thread] = [
            threading.Thread(target=self._code, args=(stream,), name=stream, daemon=True)
            for stream in self._coding
        ]
        self.watched: set[str] = set()  # operations that others wait for
        self.first: int | None = None  # the first step after a restored state
        self.earlier: dict[str, float] = {}  # decisions before the first step that later steps read

    def start(self) -> None:
        """Start the threads, once the caller's preparations on the device are done."""
        self.device_queue.device.mark().wait()
        _usual.append(_usual[0] if _usual else sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_CROWDED if self.communication.crowded else SWITCH)
        for thread in (self.communication, *self._threads):
            thread.start()

    def submit(self, program: Program) -> list[Op]:
        """Queue one step; return the operations of the compute stream, which the caller runs."""
        ops = program.role_of(self._rank).ops
        with self.board.lock:
            self.watched = {after.name for op in ops for after in op.after}
            self._last = [key for key in self._last if not self.board.is_done(*key)]
            self._last += [(program.step, op.name) for op in ops if op.stream != "compute"]
            # Old operations may still wait for a computation of their own step.
            oldest = self._last[0][0] if self._last else program.step
            self.board.forget_before(oldest - program.reach)
            communication = self.communication
            queues: dict[str, StreamQueue | deque[tuple[int, Op]]] = {
                **self._coding,
                **communication.queues,
                **communication.messages.queues,
            }
            for op in ops:
                if op.stream != "compute":
                    queues[op.stream].append((program.step, op))
            self.board.queued()
        return [op for op in ops if op.stream == "compute"]

    @np.errstate(over="ignore", invalid="ignore")  # a sum may be infinite: it is delivered so
    def _code(self, stream: str) -> None:
        queue = self._coding[stream]
        try:
            self.device_queue.device.use("codec")
            short_slice.ask()
            while self.board.wait_for_head(stream, queue):
                step, op = queue[0]
                start, end = self.buckets.code(step, op)
                queue.popleft()
                self.recorder.add(stream, op.name, step, start, end)
                self.board.mark(step, op.name, end)
        except Stopped:
            return
        except BaseException as error:
            self.board.fail(error)

    def drain(self) -> None:
        """Wait until everything that was submitted is done."""
        board = self.board
        board.show("compute", WaitStatus(-1, "end", "waits for all exchanges", now(), True))
        board.until_done(self._last)
        board.idle("compute")

    def begin_at(self, step: int) -> None:
        """Begin at `step`; the operations of earlier steps count as done."""
        lower, decisions = STRATEGIES[self.plan.strategy].lower, self.buckets.decisions
        self.first, self.earlier = step, dict(decisions)
        for done in range(max(0, step - lower(self.plan, step, decisions).reach), step):
            for op in lower(self.plan, done, decisions).role_of(self._rank).ops:
                self.board.mark(done, op.name, now())

    def follow(self, plan: Plan, step: int) -> dict[str, Array]:
        """Continue with another plan of the same tensors after `step`, on all ranks; `drain` first.

        Return the unsent gradients of removed launches, by tensor.
        """
        kept = self.buckets.follow(plan)
        self.communication.follow(plan)
        self.plan = plan
        # The new launches' results of the last step count as done: the old launches computed them.
        for op in STRATEGIES[plan.strategy].lower(plan, step, {}).role_of(self._rank).ops:
            if op.stream != "compute":
                self.board.mark(step, op.name, now())
        return kept

    def stop(self) -> None:
        """End the threads; call after `drain`."""
        with self.board.lock:
            self.board.closed = True
            self.board.wake()
        for thread in (*self._threads, self.communication):
            thread.join()
        usual = _usual.pop()
        if not _usual:
            sys.setswitchinterval(usual)
        self.buckets.close()
        self._kept.remove()

    def fail(self, error: BaseException) -> None:
        """Report a failure of the caller, so that the communication thread ends the job."""
        self.board.fail(error)
        self.communication.join()
