"""The one thread of a rank that talks to MPI: exchanges, deadlines, and the end of a broken run."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from commsched.cost.price import library_bytes
from commsched.errors import CommschedError
from commsched.exchange.endpoint import Endpoint
from commsched.exchange.method import resolved
from commsched.exchange.registry import find_method, phases_of
from commsched.machine.model import Group
from commsched.plan.model import Plan
from commsched.program.model import CODINGS, Kind, Op
from commsched.run.engine import short_slice
from commsched.run.engine.board import HOLD, Board, Key, WaitStatus
from commsched.run.engine.buckets import Buckets
from commsched.run.engine.channels import EVERYONE, channel, communicators
from commsched.run.engine.messages import Mail, MessageStreams
from commsched.run.engine.prepare import driver, prepared
from commsched.run.engine.prepared_exchange import Landing
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import Pacer
from commsched.run.engine.waiting import SPARSE, Waiting
from commsched.run.job.clock import now
from commsched.run.job.deadlines import deadlines
from commsched.run.job.ending import abort, say, say_why
from commsched.run.job.fabric import crowded
from commsched.run.job.watchdog import unanswering
from commsched.run.wire.path import Exchange, PendingMove, Repeated, Unlocked
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.schedule.rounds import Schedule
from commsched.units import nbytes, seconds

ALARM = 1  # tag on the control communicator
PAUSE = 0.01  # s between polls for alarms of other ranks


@dataclass(slots=True)
class Active:
    """An exchange under way on one stream."""

    step: int
    op: Op
    exchange: Exchange
    start: float
    moved: float  # time of its last progress
    moves: int = 0  # of the exchange at that time
    by_library: int | None = None  # B on the wire, if the library sums

    def sent(self) -> int:
        return self.exchange.sent if self.by_library is None else self.by_library


class Communication(threading.Thread):
    """Runs the exchange streams: one exchange at a time on each, in plan order."""

    def __init__(
        self,
        plan: Plan,
        comm: MPI.Intracomm,
        board: Board,
        buckets: Buckets,
        recorder: Recorder,
        timeout: float,
        mail: Mail,
        place: Placement = ON_HOST,
        option: str = "--timeout",
    ) -> None:
        super().__init__(name="communication", daemon=True)
        self._plan, self._board, self._buckets, self._recorder = plan, board, buckets, recorder
        self._timeout, self._option = timeout, option
        self._deadlines, self._place = deadlines(), place
        self._comm, self.crowded = comm, crowded(comm)
        self._prepared: dict[tuple[int, Kind, int], Repeated] = {}  # by launch and phase
        self._landing: defaultdict[str, Landing] = defaultdict(Landing)  # by stream
        self._sent: dict[int, int] = {}  # launch -> B on the wire for its sum by the library
        self._control = comm.Dup()
        self._comms = communicators(plan, comm)
        self._join()
        driver()  # load compiled code before the first step
        self.queues: dict[str, deque[tuple[int, Op]]] = {"inside": deque(), "between": deque()}
        self.messages = MessageStreams(
            plan, comm, board, recorder, mail, buckets.device_queue, place
        )
        self._active: dict[str, Active] = {}
        self._looked = self._glanced = self._awake = now()
        self.waiting = Waiting(self._control)
        self.cpu = 0.0  # s of processor time of this thread, so far

    @np.errstate(over="ignore", invalid="ignore")  # an infinite sum is delivered as it is
    def run(self) -> None:
        """Poll until the board is closed; any error ends the job."""
        try:
            self._place.device.use("codec")
            short_slice.ask()
            self._loop()
        except BaseException as error:  # any exception: the other ranks must not hang
            self._board.fail(error)
            self._abort(error)

    def follow(self, plan: Plan) -> None:
        """Continue with another plan; all ranks call this while no exchange is under way."""
        comms = communicators(plan, self._comm, self._comms)
        self._free_prepared()
        with self._board.lock:
            self._plan, self._comms = plan, comms
        self._join()

    def _join(self) -> None:
        """Prepare native sums on all ranks at once; within a step a rank would delay the others."""
        self._sent = {}
        for number, launch in enumerate(self._plan.launches):
            comm = self._comms[channel(launch)]
            if find_method(launch.method).library and comm:
                self._place.path.join(comm)
                (phase,) = phases_of(self._plan, number)
                sent = library_bytes(resolved(phase), self._plan.machine, self._plan.group(launch))
                self._sent[number] = round(sent[comm.rank])

    def free(self) -> None:
        """Free the communicators; all ranks call it after the thread has ended."""
        self.waiting.close()
        self._free_prepared()
        for comm in (self._control, self.messages.comm, *self._comms.values()):
            if comm != MPI.COMM_NULL:
                comm.Free()

    def _free_prepared(self) -> None:
        for each in self._prepared.values():
            each.free()
        self._prepared.clear()

    def _loop(self) -> None:
        pacer, board = Pacer(self.crowded), self._board
        while True:
            board.changed[0] = 0
            started = self._start()
            if board.failure is not None:
                self._abort(board.failure)
            if board.closed and not self._active and self.messages.idle:
                self.cpu = time.thread_time()
                return
            if started:
                pacer.busy()
            alone = None if board.owes else self._alone()
            if alone is not None:
                pacer.wait(alone, board.changed, board.computes)
            busy = self._progress() or started
            board.deliver(busy=busy)
            if busy:
                pacer.busy()
            elif alone is None and (self._active or self.messages.busy):
                pacer.rest(board.computes)
            self._look()

    def _alone(self) -> Unlocked | None:
        """Return the only exchange under way, if it can progress without this thread's polls."""
        if len(self._active) != 1 or self.messages.busy:
            return None
        (active,) = self._active.values()
        return active.exchange if isinstance(active.exchange, Unlocked) else None

    def _start(self) -> bool:
        """Begin the first operations of each free stream whose inputs are complete."""
        started = False
        for stream, queue in self.queues.items():
            while queue and stream not in self._active:
                step, op = queue[0]
                if not self._board.ready(step, op.after):
                    break
                queue.popleft()
                if op.kind in CODINGS:
                    self._code(stream, step, op)
                else:
                    self._exchange(stream, step, op)
                started = True
        if not (started or self._active):
            self._board.deliver(busy=False)
            self._sleep()
        return started

    def _sleep(self) -> None:
        """Wait for the inputs of the next operations, for new work, an end or a failure."""
        with self._board.lock:
            keys = self._awaited()
            if keys is not None:
                self._board.sleep(keys, self._deadlines.idle, awaited=self._awaited)

    def _awaited(self) -> set[Key] | None:
        """Return the operations that all free streams wait for; None: something can be done."""
        if self._board.closed or self._board.failure is not None or self.messages.busy:
            return None
        wanted = [queue[0] for queue in self.queues.values() if queue]
        missing = [self._board.missing(step, op.after) for step, op in wanted]
        if not all(missing):
            return None
        return {key for keys in missing for key in keys}.union(self.messages.missing())

    def _code(self, stream: str, step: int, op: Op) -> None:
        """Encode the next packet or decode a received one in this thread; other exchanges wait."""
        start, end = self._buckets.code(step, op)
        self._recorder.add(stream, op.name, step, start, end)
        self._board.mark(step, op.name, end, wakes=False)

    def _exchange(self, stream: str, step: int, op: Op) -> None:
        start = now()
        self._recorder.begin(stream, op.name, step, start)
        phase, held = self._buckets.exchange(step, op)
        exchange = self._begin(op, phase.schedule, held)
        sent = self._sent[op.launch] if phase.schedule.library else None
        self._active[stream] = Active(step, op, exchange, start, start, by_library=sent)

    def _begin(self, op: Op, schedule: Schedule, held: Endpoint) -> Exchange:
        """Start an exchange; reuse the one prepared in an earlier step if possible."""
        key = op.launch, op.kind, op.phase
        known = self._prepared.get(key)
        if known is not None and known.fits(schedule, held):
            known.start()
            return known
        if known is not None:
            self._prepared.pop(key).free()
        launch = self._plan.launches[op.launch] if op.launch >= 0 else None
        comm = self._comms[channel(launch) if launch else EVERYONE]
        path = self._place.path if self._buckets.away(op) else self._place.host
        tag = (16 * op.launch + 2 * op.phase + (op.kind is Kind.DECIDE)) % 32749
        exchange: Exchange | None = None
        if launch is None or not find_method(launch.method).sharded:
            exchange = prepared(schedule, held, comm, tag, path, self._landing[op.stream])
        # A failed isinstance check takes as long as a short exchange.
        repeats = exchange is not None or schedule.library
        exchange = exchange or begin(schedule, held, comm, tag, path)
        if repeats and isinstance(exchange, Repeated):
            self._prepared[key] = exchange
        return exchange

    def _progress(self) -> bool:
        moved = self.messages.progress()
        for stream, active in list(self._active.items()):
            if active.exchange.progress():
                del self._active[stream]
                self._finish(stream, active)
                moved = True
            if active.exchange.moves != active.moves:
                active.moves, active.moved = active.exchange.moves, now()
                moved = True
        return moved

    def _finish(self, stream: str, active: Active) -> None:
        step, op = active.step, active.op
        decided = self._buckets.decide(step, op) if op.kind is Kind.DECIDE else None
        exchange = active.exchange
        spent = exchange.coded
        end = now()
        coded = min(spent, end - active.start)
        sent = active.sent()
        self._recorder.add(stream, op.name, step, active.start, end, sent, coded, decided)
        # Delayed wake-ups pay between short exchanges. For a long message MPI may copy for
        # milliseconds in a single call, which would delay the waiters.
        self._board.mark(step, op.name, end, wakes=end - active.start > HOLD)

    def _look(self) -> None:
        """Check at intervals for passed deadlines and slow ranks, here or on other ranks."""
        moment = now()
        if moment - self._glanced < SPARSE:
            return
        if moment - self._glanced > self._deadlines.grace:
            self._awake = moment  # this process was stopped: restart its deadlines
        self._glanced = moment
        exchange = next((active.op.name for active in self._active.values()), None)
        self.waiting.look(moment, self._board.status, exchange)
        if moment - self._looked < self._deadlines.idle:
            return
        self._looked = moment
        self.waiting.report(moment)
        self.cpu = time.thread_time()
        if self._control.Iprobe(MPI.ANY_SOURCE, ALARM):
            self._alarm(self.describe(self._looked))
        since = [active.moved for active in self._active.values()]
        # A stream that waits for this rank itself is late only if nothing here progresses.
        moved = max([self._board.moved, *since])
        since += self.messages.leaving_since
        since += [max(s.since, moved) for s in [*self._board.status.values()] if s.waits]
        if any(self._looked - max(each, self._awake) > self._timeout for each in since):
            stuck = f"no progress for {seconds(self._timeout)} ({self._option})"
            self._alarm(f"rank {self._control.rank}: {stuck}\n{self.describe(self._looked)}")

    def _statuses(self) -> dict[str, WaitStatus]:
        found = self._board.status | self.messages.statuses()
        for stream, active in self._active.items():
            what = " and ".join(map(self._waiting(active), active.exchange.waiting()))
            found[stream] = WaitStatus(
                active.step, active.op.name, f"waits {what}".rstrip(), active.moved, True
            )
        return found

    def _waiting(self, active: Active) -> Callable[[PendingMove], str]:
        group: Group | None = self._plan.machine.everyone
        if active.op.launch >= 0:
            launch = self._plan.launches[active.op.launch]
            group = self._plan.group_of(launch, self._control.rank)
        ranks = group.ranks if group is not None else ()

        def say(wait: PendingMove) -> str:
            size = "a message" if wait.nbytes is None else nbytes(wait.nbytes)
            if wait.direction == "among":
                return f"for the MPI's own all-reduce of {size}"
            return f"for {size} {wait.direction} rank {ranks[wait.peer]}"

        return say

    def describe(self, when: float) -> str:
        """Return a line for every stream of this rank with its current activity."""
        rank = self._control.rank
        lines = [
            f"rank {rank}, {stream}: step {s.step}: {s.name} {s.what},"
            f" for {seconds(when - s.since)}"
            for stream, s in sorted(self._statuses().items())
        ]
        return "\n".join(lines) or f"rank {rank}: has nothing to do"

    def _alarm(self, text: str) -> None:
        """After a deadline on any rank, print what this rank does, and end the job.

        Each rank sends an alarm to all others; the lowest rank that was heard names silent ones.
        """
        say(text)
        others = set(range(self._control.size)) - {self._control.rank}
        note = np.zeros(1, np.uint8)
        calls = [self._control.Isend(note, peer, ALARM) for peer in sorted(others)]
        self._recorder.flush()
        heard = self._heard(others)
        silent = sorted(others - heard)
        if self._control.rank > min(heard, default=self._control.rank):
            time.sleep(self._deadlines.grace)  # the first ends the job
        else:
            say("\n".join(filter(None, (unanswering(silent) if silent else "", self._kept))))
        del calls
        abort(self._control)

    @property
    def _kept(self) -> str:
        """Tell where the last operations of the ranks are stored, if the user cannot know that."""
        return "" if self._recorder.last is None else self._recorder.last.told

    def _heard(self, others: set[int]) -> set[int]:
        """Return the ranks whose alarm arrives within the grace time."""
        heard: set[int] = set()
        status, note, end = MPI.Status(), np.empty(1, np.uint8), now() + self._deadlines.grace
        while now() < end:
            while self._control.Iprobe(MPI.ANY_SOURCE, ALARM, status):
                self._control.Recv(note, status.Get_source(), ALARM)
                heard.add(status.Get_source())
            time.sleep(PAUSE)
        return heard

    def _abort(self, error: BaseException) -> None:
        """Write all measurements to disk, then end all ranks."""
        self._recorder.flush()
        if isinstance(error, MPI.Exception):
            time.sleep(2 * self._deadlines.look)  # if a rank is gone, its witness names it first
        say_why(error, self._control.rank)
        if not isinstance(error, CommschedError):  # the sentence of a CommschedError is enough
            say(self._kept)
        abort(self._control)
