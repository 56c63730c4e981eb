"""`commsched.Exchanger`: a training loop hands over gradients and gets them back summed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.recorded_gradients import Recording
from commsched.exchange.rows import whole
from commsched.files import check_writable
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.read_plan import AnyPlan, checked_plan
from commsched.program.registry import STRATEGIES
from commsched.run.adapt.plan_switch import Changes, Replan
from commsched.run.engine.board import WaitStatus
from commsched.run.engine.caller_lane import CallerLane
from commsched.run.engine.engine import Engine
from commsched.run.engine.measurement import Measurement
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Carrying, Roles
from commsched.run.handover import (
    BucketSlice,
    Caller,
    Handover,
    check_gradient,
    check_left,
    check_name,
    check_rows,
    check_strategy,
    checked_step,
    checked_successor,
    lowered,
    places_of,
    restored,
    since_of,
)
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.ending import say
from commsched.run.job.watchdog import watchdog
from commsched.run.updates import Held, Updates
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import ON_HOST, choose_placement
from commsched.timeline.model import Span


class Exchanger:
    """Sums gradients over the ranks of `comm` in the background, as a plan says.

    Use it in a with block, on all ranks, from one thread of each:

        with commsched.Exchanger("plan.json", comm) as exchanger:
            for batch in batches:
                for name, gradient in backward(batch):  # the last layer's first
                    exchanger.ready(name, gradient)
                for name in exchanger.names:
                    parameters[name] -= rate * exchanger.wait(name)

    A step is over when every tensor has been handed over and waited for; the next `ready` begins
    the next step. All ranks must leave the block in the same step; exchanges that are then under
    way are finished, and their sums dropped. An exception inside the block ends the whole MPI job.
    If nothing progresses for `timeout` seconds, all ranks print what they wait for and the job
    ends. So `timeout` must exceed the longest time that one rank lets the others wait.

    With `timeline`, rank 0 writes the measured timeline to that file: a compute span
    "backward/LAYER" lasts from the previous span until the gradients of LAYER and of all later
    layers are handed over; "BUCKET/apply" lasts from `wait` until `wait` for another bucket.

    Launches that begin later (`commsched plan --later`) replace the earlier ones in that step. A
    tensor that exceeds the plan's error budget is summed dense from the third step after, with
    its unsent part. With `replan`, such as `commsched.replanned`, rank 0 plans anew once densities
    or exchanges differ from the plan's. Rank 0 prints each change; the timeline's header has it.

    With `record`, rank 0 writes samples of its last 32 gradients of each tensor to that file: see
    `commsched plan --gradients`.

    Plans of `daso` and `shadow` need `parameters`: each tensor's elements in one float32 array, or
    in an object whose slices can be read and assigned. Call `updated` after the update of each
    step; plans of `shadow` take no gradients.

    With `device="cuda"` gradients and sums are CuPy arrays on the GPU that is current at the begin
    of the block. `ready` and `wait` use the stream that is current in their thread; `ready` does
    not wait for the device. CUDA's default stream waits for all transfers and overlaps none.
    """

    names: tuple[str, ...]  # all tensors, in the order in which their sums come back
    places: Mapping[str, Sequence[BucketSlice]]  # of tensors; replaced when the launches change

    def __init__(
        self,
        plan: AnyPlan,
        comm: MPI.Intracomm,
        *,
        timeline: str | Path | None = None,
        record: str | Path | None = None,
        timeout: float = 60.0,
        device: str = "cpu",
        skip_overflow: bool = False,
        parameters: Mapping[str, Any] | None = None,
        replan: Replan | None = None,
    ) -> None:
        agree.check_comm(comm)
        self._parameters, self._replan = parameters, replan
        self._skip_overflow, self._device = skip_overflow, device
        self.timeline = None if timeline is None else Path(timeline).absolute()
        self._record = None if record is None else Path(record).absolute()
        self._timeout = timeout
        with watchdog(comm, "Exchanger", timeout, "timeout"):
            alike = {"skip_overflow": str(skip_overflow), "replan": str(replan is not None)}
            agree.check_start("Exchanger", alike, comm)
            self._plan = agree.on_all_ranks(lambda: self._checked(plan), comm)
            agree.check_plan(self._plan, comm)
            agree.check_files({"timeline": timeline, "record": record}, comm)
        self._user_comm = comm
        self._since, self.places = 0, places_of(self._plan)  # first step of the launches in use
        self.names = tuple(self.places)
        self._handover = Handover(self._plan.net, self.places)
        self._caller = Caller()
        self._updates = Updates() if STRATEGIES[self._plan.strategy].averages else None
        self._engine: Engine | None = None
        self._place, self._over = ON_HOST, False

    def _checked(self, plan: AnyPlan) -> Plan:
        """Make the checks that one rank can make without the others."""
        check_device(self._device)
        if not self._timeout > 0:
            raise CommschedError(f"timeout must be more than 0 seconds, got {self._timeout}")
        for path in (self.timeline, self._record):
            if path is not None:
                check_writable(path)
        checked = checked_plan(plan)
        check_strategy(checked, self._parameters, self._replan is not None)
        return checked

    def __enter__(self) -> "Exchanger":
        if self._engine is not None:
            raise CommschedError("an Exchanger works in one with block only; create a new one")
        plan, rank = self._plan, self._user_comm.rank
        self._measurement: Measurement | None = None
        self._recording = Recording(self._record) if self._record and rank == 0 else None
        recorder = Recorder(rank)
        with watchdog(self._user_comm, "Exchanger", self._timeout, "timeout") as dog:
            self._comm = self._user_comm.Dup()
            dog.stage("finding the device")
            self._place = place = choose_placement(self._device, self._comm, current=True)
            place.device.use("caller")
            if self.timeline is not None:
                dog.stage("comparing hosts and clocks")
                header = place.header("caller")
                self._measurement = Measurement(plan, self._comm, self.timeline, header)
                recorder = self._measurement.recorder
            dog.stage("making communicators")
            self._carrying = Carrying(self._caller)
            held = None if self._updates is None else Held(plan, self._parameters or {})
            roles = Roles(self._carrying, held, self._updates)
            self._engine = Engine(
                *(plan, self._comm, roles, recorder, self._timeout), place=place, option="timeout"
            )
            self._engine.buckets.skips_overflow = self._skip_overflow
            told = (self._carrying, self._measurement, self._replan)
            self._changes = Changes(self._engine, self._comm, *told)
        self._lower(plan, self._since)
        self._engine.start()
        if self._measurement is not None:
            self._measurement.wait_for_start()
        self._lane = CallerLane(self._engine)
        return self

    def _lower(self, plan: Plan, step: int) -> Sequence[Op]:
        """Prepare a plan's operations other than the caller's compute; return all operations."""
        assert self._engine is not None
        decisions = self._engine.buckets.decisions
        ops, self._program = lowered(plan, step, self._user_comm.rank, decisions)
        self._ends = {op.launch: op.name for op in ops if op.kind is Kind.DECODE}
        self._plan = plan
        return ops

    def _submit(self, engine: Engine) -> None:
        """Queue the operations of the step that begins."""
        step = self._handover.step
        if self._updates is not None:
            self._updates.begin(self._lower(self._plan, step))
        elif since_of(self._plan, step) != self._since:
            self._now_by(self._plan)
        engine.submit(replace(self._program, step=step))
        self._lane.begin()
        self._caller.as_rows.clear()

    def ready(
        self, name: str, gradient: Array | tuple[Array, Array], *, lent: bool = False
    ) -> None:
        """Hand over this rank's gradient of a tensor; it is copied, so it may be reused at once.

        A `lent` gradient is copied later, and must not change until `wait` returns. A pair (rows,
        values) is a gradient that is zero outside these rows: (k,) whole numbers in any order
        and (k, ...) float32; values of repeated rows are added in order. Methods that take lists
        make no dense array of the pair. Tensors may come in any order; backward's overlaps best.
        `ready` waits for others only in the first call after a tensor exceeded the error budget.
        """
        engine = self._running()
        check_name(name, self._plan.net, self.places)
        tensor, module = self._plan.net.tensors[name], self._place.device.module
        if isinstance(gradient, tuple):
            gradient = check_rows(tensor, gradient, module, self._device)
        else:
            check_gradient(tensor, gradient, module, self._device)
        engine.board.check()
        if self._updates is not None and self._handover.over:
            self._updates.check_over(self._handover.step)
        if self._handover.take(name):
            self._look_back(engine, self._handover.step - 1)
            self._submit(engine)
        if self._recording is not None:
            self._recording.take(name, on_host(whole(gradient, tensor.numel)))
        lent = lent and self._device == "cpu"
        self._caller.take(name, gradient, self.places[name], engine.buckets.states, lent)
        self._mark()

    def _look_back(self, engine: Engine, step: int) -> None:
        """Follow another plan if the measurements of `step` require one."""
        if step < 0 or not self._changes.after(step):
            return
        self._now_by(engine.plan)
        if self._user_comm.rank == 0:
            say(self._changes.sentence(step + 1))
        self._lane.resume()

    def _now_by(self, plan: Plan) -> None:
        """Record the operations of the engine's plan, and the buckets of its tensors."""
        self._since = since_of(plan, max(self._handover.step, 0))
        self._lower(plan, self._since)
        self.places = places_of(plan, self._since)
        self.names = tuple(self.places)
        self._caller.whole.clear()

    def wait(self, name: str) -> Array | tuple[Array, Array]:
        """Wait for the sum, or the mean if the plan says so, of a tensor over all ranks.

        The array has the tensor's shape and stays valid until the next `ready` of this tensor. A
        gradient that was handed over as rows comes back as rows: ascending, without empty ones.
        """
        engine = self._running()
        check_name(name, self._plan.net, self.places)
        places, launches, step = self.places[name], self._plan.launches, self._handover.step
        self._handover.wait(name, [launches[place.launch].after for place in places])
        ends = [self._ends[place.launch] for place in places]
        missing = [end for end in ends if not engine.board.is_done(step, end)]
        last = places[-1].launch
        if missing or not self._lane.uses(last):
            self._lane.end_use(step)
            if missing:
                self._lane.block(step, f"tensor {name!r}", missing)
            self._lane.use(last)
        if self._handover.over:
            engine.recorder.flush()
        return self._caller.sum_of(self._plan.net.tensors[name], places, self._place.device.module)

    def updated(self, loss: float | None = None) -> None:
        """End a step whose parameters are updated; return once those of other ranks are merged.

        This is for plans whose ranks exchange parameters. `loss` of this rank's batch is needed at
        the end of a non-blocking epoch of `daso`, and ignored elsewhere.
        """
        engine = self._running()
        if self._updates is None:
            raise CommschedError(f"plans of {self._plan.strategy!r} exchange no parameters")
        engine.board.check()
        if not self.places:
            self._handover.begin()
            self._submit(engine)
        elif not self._handover.over:
            raise CommschedError("updated() ends a step, once every sum of its gradients is there")
        self._updates.done(engine, self._lane, self._handover.step, loss)

    def add_span(self, name: str, start: float, end: float, *, ahead: bool = False) -> None:
        """Add a span of the caller to the timeline, such as "forward/LAYER", in s of perf_counter.

        The span belongs to the step of the last `ready`, with `ahead` to the next step; names must
        differ within a step.
        """
        self._running()
        self._lane.add(max(self._handover.step + ahead, 0), name, start, end)

    def listen(self, take: Callable[[Span], None]) -> None:
        """Call `take` with every span as it ends, in the thread of its stream."""
        self._running().recorder.takers.append(take)

    def turn(self) -> None:
        """End the current span now: of the first layer in backward, or of the last use of a sum."""
        self._running()
        self._lane.end_use(self._handover.step)
        self._lane.resume()

    def follow(self, plan: AnyPlan, why: str) -> None:
        """Follow another plan of the same net, on all ranks together; nothing unsent is lost."""
        self._between("follow another plan")
        checked = checked_successor(plan, self._plan)
        self._changes.switch(checked, self._handover.step, why)
        self._now_by(checked)

    def _between(self, what: str) -> Engine:
        engine = self._running()
        if self._updates is not None:
            self._updates.check_over(self._handover.step)
        if self._handover.step >= 0 and not self._handover.over:
            raise CommschedError(f"a step is under way; {what} once every sum is there")
        return engine

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return self._plan

    @property
    def overflowed(self) -> bool:
        """Whether NaN or infinity was handed over in the last step whose sums are complete."""
        return self._handover.step in self._running().buckets.overflows

    def kept(self) -> dict[str, Any]:
        """Return this rank's state between two steps, from which `restore` continues."""
        engine = self._between("keep its state")
        engine.drain()
        own = {"rank": self._comm.rank, "step": self._handover.step + 1, "plan": engine.plan.hash}
        return {**own, "carried": self._carrying.kept(), **engine.buckets.kept()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from this rank's result of `kept`; all ranks call it before any `ready`."""
        engine = self._running()
        if self._handover.step >= 0:
            raise CommschedError("a state is restored before the first step, not after it")

        def own() -> int:
            step = checked_step(kept, engine.plan, self._comm.rank)
            engine.buckets.restore(kept)
            self._carrying.restore(engine.plan, kept["carried"])
            return step

        engine.board.show("compute", WaitStatus(0, "restore", "waits for all ranks", now(), True))
        step = restored(own, self._comm)
        self._handover.begin_at(step)
        engine.begin_at(step)
        self._changes.watch(step)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        engine = self._running()
        try:
            if error is not None:
                raise error
            self._leave()
        except BaseException as failure:
            engine.fail(failure)  # ends the job
            raise
        engine.stop()
        last = "bringing the spans together"
        with watchdog(self._user_comm, "Exchanger", self._timeout, "timeout", last) as dog:
            self._changes.close()
            try:
                agree.on_all_ranks(self._recording.write if self._recording else str, self._comm)
            finally:
                if self._measurement is not None:
                    self._measurement.finish(
                        engine,
                        dog,
                        steps=self._handover.step + 1,
                        fallbacks=self._changes.fallbacks,
                        switches=self._changes.switches,
                    )
            engine.communication.free()
            self._comm.Free()
        self._over = True

    def _leave(self) -> None:
        """Finish all exchanges under way, once all ranks leave the block."""
        assert self._engine is not None
        board, step = self._engine.board, self._handover.step
        board.show("compute", WaitStatus(step, "end", "waits for all ranks to leave", now(), True))
        if self._updates is not None:  # other ranks may wait for this rank in their update
            self._updates.leave(self._engine, step)
        check_left(agree.gather_numbers(step, self._comm))
        self._mark(all_of_them=True)
        self._engine.drain()
        self._engine.device_queue.settle(wait=True)

    def _running(self) -> Engine:
        if self._engine is None or self._over:
            raise CommschedError("an Exchanger works inside a with block; this one has none")
        self._place.device.use("caller")  # PyTorch calls from another thread
        return self._engine

    def _mark(self, all_of_them: bool = False) -> None:
        """Post the layers whose backward is over, so that their buckets can be exchanged."""
        step = self._handover.step
        for layer in self._handover.completed(all_of_them) if step >= 0 else ():
            self._lane.complete(step, layer)
