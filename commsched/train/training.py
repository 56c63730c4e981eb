"""`commsched train`: execution of a plan's program by a real net on real data."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

from commsched.plan.model import Plan
from commsched.program.model import Op, Program
from commsched.program.registry import STRATEGIES
from commsched.program.stages import OVERFLOW
from commsched.run.adapt.plan_switch import Changes
from commsched.run.engine.board import WaitStatus
from commsched.run.engine.compute_stream import in_turn
from commsched.run.engine.engine import Engine
from commsched.run.engine.measurement import Measurement
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Carrying
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.ending import say
from commsched.run.job.store import Manifest, Store
from commsched.run.job.watchdog import watchdog
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.timeline.model import Span, Timeline
from commsched.timeline.names import decision_key
from commsched.timeline.summary import fallback_sentence
from commsched.train.forward_backward import Score, added
from commsched.train.neighbours import MpiNeighbours
from commsched.train.packing import packed
from commsched.train.tally import Tally
from commsched.train.workers.trainee import Trainee
from commsched.training_log import HeldOutRow, LogRow, TrainingLog

FLUSH = 16  # steps after which spans are written
NEWEST = 1000  # newest steps kept for a summary


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The length of a training, and the files to write."""

    steps: int
    evaluate: int = 50  # steps between scores of the held-out samples; 0: never
    every: int = 50  # steps between checkpoints
    timeout: float = 60.0  # s without progress after which the job ends
    timeline: Path | None = None
    progress: Callable[[LogRow], None] = lambda row: None  # called on all ranks
    taker: Callable[[Span], None] | None = None  # called with each span of this rank


class Training:
    """One training on one rank: the loop, and the work between two steps."""

    def __init__(
        self,
        learner: Trainee,
        plan: Plan,
        comm: MPI.Intracomm,
        log: TrainingLog | None,
        store: Store | None,
        options: TrainOptions,
        place: Placement = ON_HOST,
    ) -> None:
        self._learner, self._plan, self._comm = learner, plan, comm
        self._log, self._store, self._options = log, store, options
        self.rows: deque[LogRow] = deque(maxlen=NEWEST)
        self.logged, self.sent = 0, 0  # logged steps, and B that this rank has sent in them
        self.held: HeldOutRow | None = None
        self._first = 0
        self._open: list[tuple[int, float]] = []  # steps with scores under way, their seconds
        with watchdog(comm, "train", options.timeout) as dog:
            recorder = Recorder(comm.rank)
            self._measurement: Measurement | None = None
            if options.timeline is not None:
                dog.stage("comparing hosts and clocks")
                header = place.header(learner.net.name)
                self._measurement = Measurement(plan, comm, options.timeline, header)
                recorder = self._measurement.recorder
            if options.taker is not None:
                recorder.takers.append(options.taker)
            dog.stage("making communicators")
            carrying = Carrying(learner)
            roles = learner.roles._replace(gradients=carrying)
            self._engine = Engine(plan, comm, roles, recorder, options.timeout, learner.mail, place)
            self._tally = Tally(comm, self._engine.board)
            self._changes: Changes | None = None
            if is_watched(plan, store):
                self._changes = Changes(self._engine, comm, carrying, self._measurement)
        learner.report = self._tally.post
        learner.overflowed = self._overflowed

    def _overflowed(self, step: int) -> bool:
        """Tell whether all ranks skip a step, by the program's decision or by their scores."""
        if STRATEGIES[self._plan.strategy].decides == "overflow":
            return self._engine.buckets.decisions[decision_key(step, OVERFLOW)] > 0
        return self._tally.total(step)[1]

    def resume(self, manifest: Manifest, values: dict[str, Any]) -> None:
        """Continue from a checkpoint, with this rank's values."""
        self._first = manifest.step
        agree.on_all_ranks(lambda: self._restore(values, manifest.scalars), self._comm)
        # Earlier steps are over: their results were applied before the checkpoint.
        self._engine.begin_at(self._first)

    def _restore(self, values: dict[str, Any], scalars: Mapping[str, float]) -> None:
        """Restore what `_save_checkpoint` has saved."""
        self._learner.restore(values.get("learner"), scalars, self._first)
        if "rates" in values:  # checkpoints of 0.1 have none
            self._learner.rates.restore(values["rates"])
        self._engine.mail.restore(values.get("messages", {}))
        self._engine.buckets.restore(values)

    def run(self) -> Timeline | None:
        """Train; rank 0 returns the timeline if the user asked for one."""
        engine, options = self._engine, self._options
        engine.start()
        try:
            if self._measurement is not None:
                self._measurement.wait_for_start()
            with nullcontext() if self._measurement is None else self._measurement.telling():
                self._train()
        except BaseException as error:
            engine.fail(error)
            raise
        engine.stop()
        with watchdog(
            self._comm, "train", options.timeout, first="bringing the spans together"
        ) as dog:
            self._tally.free()
            changes = self._changes
            if changes is not None:
                changes.close()
            engine.communication.free()
            if self._measurement is None:
                return None
            return self._measurement.finish(
                engine,
                dog,
                steps=options.steps,
                fallbacks=changes.fallbacks if changes else None,
                switches=changes.switches if changes else None,
            )

    def _train(self) -> None:
        for step in range(self._first, self._options.steps):
            begun = now()
            self._step(step)
            self._open.append((step, now() - begun))
            self._follow_changes(step)
            self._log_steps(keep=self._learner.ahead)
            self._between(step)
        self._settle()

    def _program(self, step: int) -> Program:
        plan = self._engine.plan  # a tensor may have left its error budget
        return STRATEGIES[plan.strategy].lower(plan, step, self._engine.buckets.decisions)

    def _follow_changes(self, step: int) -> None:
        """Follow the plan with dense launches for tensors over the error budget, after a step."""
        if self._changes is None or not self._changes.after(step):
            return
        if self._comm.rank == 0:
            say(fallback_sentence(self._changes.fallbacks, step + 1))

    def _step(self, step: int) -> None:
        engine = self._engine
        for op in in_turn(engine.board, step, engine.submit(self._program(step))):
            self._perform(step, op)
        if step % FLUSH == FLUSH - 1:
            engine.recorder.flush()

    def _perform(self, step: int, op: Op) -> None:
        """Perform one compute operation when its inputs are complete."""
        board = self._engine.board
        if op.after:
            board.wait_for_any("compute", step, [op])
        queue = self._engine.device_queue
        start = queue.device.mark()
        self._learner.perform(step, op)
        queue.add(step, op.name, start)
        if op.name in self._engine.watched:
            board.mark(step, op.name, now())

    def _between(self, step: int) -> None:
        """Evaluate and save a checkpoint when due; the timeline leaves this time out."""
        done, options = step + 1, self._options
        last = done == options.steps
        evaluate = bool(options.evaluate) and (last or done % options.evaluate == 0)
        keep = self._store is not None and (last or done % options.every == 0)
        if not (evaluate or keep):
            return
        self._settle()
        begun = now()
        if evaluate:
            self._evaluate(step)
        if keep:
            self._save_checkpoint(done)
        pause = min(agree.gather_numbers(now() - begun, self._comm))
        self._engine.recorder.leave_out(pause)
        self._engine.board.idle("compute")

    def _post_status(self, step: int, name: str, what: str) -> None:
        self._engine.board.show("compute", WaitStatus(step, name, what, now(), True))

    def _settle(self) -> None:
        """Finish all exchanges, apply their results, and log all steps."""
        self._engine.drain()
        self._learner.settle()
        self._engine.device_queue.settle(wait=True)
        self._log_steps(keep=0)

    def _log_steps(self, keep: int) -> None:
        """Log the steps with complete scores, except the last `keep`."""
        while len(self._open) > keep:
            step, seconds = self._open.pop(0)
            score, overflow = self._tally.total(step)
            sent = self._engine.recorder.sent.pop(step, 0)
            row = LogRow(
                step=step,
                loss=finite_or_none(score.loss / score.guesses),
                accuracy=score.correct / score.guesses,
                seconds=seconds,
                sent_bytes=sent,
                skipped=overflow,
            )
            self.rows.append(row)
            self.logged, self.sent = self.logged + 1, self.sent + sent
            self._write(row)
            self._options.progress(row)

    def _write(self, line: LogRow | HeldOutRow) -> None:
        if self._log is not None:
            self._log.write(line)

    def _evaluate(self, step: int) -> None:
        own = added(self._scores(step))
        self._post_status(step, "evaluate", "waits for the scores of all ranks")
        parts = [agree.gather_numbers(x, self._comm) for x in own]
        loss, correct, guesses = (sum(part) for part in parts)
        mean = finite_or_none(loss / guesses)
        if (step + 1) % self._options.evaluate == 0:  # else a longer run would differ
            self._learner.rates.observe(loss / guesses)
        self.held = HeldOutRow(step=step, loss=mean, accuracy=correct / guesses)
        self._write(self.held)

    def _scores(self, step: int) -> Iterator[Score]:
        """Score this rank's part of the held-out samples; the deadline applies to each part."""
        scores = self._learner.evaluate(MpiNeighbours(self._comm))
        status = step, "evaluate", "waits for the other stages"
        if self._learner.mail is None:
            yield from scores
            return
        self._post_status(*status)
        for score in scores:
            yield score
            self._post_status(*status)

    def _save_checkpoint(self, done: int) -> None:
        """Write a checkpoint."""
        assert self._store is not None
        own, scalars = self._learner.state()
        self._post_status(done - 1, "checkpoint", "waits for all ranks")
        values = {
            "learner": own,
            "rates": self._learner.rates.numbers(),
            "messages": self._engine.mail.kept(),
            **self._engine.buckets.kept(),
        }
        self._store.save(done, packed({"step": done, "rank": self._comm.rank, **values}), scalars)


def is_watched(plan: Plan, store: Store | None) -> bool:
    """Tell whether a plan's error budget is watched; a checkpoint cannot hold a watch's state."""
    return bool(plan.max_error) and STRATEGIES[plan.strategy].sums_every_step and store is None


def finite_or_none(value: float) -> float | None:
    """Return a number that JSON can hold: None for NaN and infinity."""
    return value if math.isfinite(value) else None
