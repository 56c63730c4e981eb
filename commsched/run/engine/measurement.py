"""The measurement of a run, from the common start of all ranks to one timeline file."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import isfinite
from pathlib import Path

import msgspec
from mpi4py import MPI

from commsched import files
from commsched.errors import Agreed, CommschedError
from commsched.plan.model import Plan
from commsched.plan.notes import launch_notes
from commsched.program.launch_ops import teams_apart
from commsched.program.model import STREAMS
from commsched.program.registry import STRATEGIES
from commsched.run.engine.engine import Engine
from commsched.run.engine.merge import merge, steps_at_once
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.unnamed_timeline import make_room, unnamed
from commsched.run.job import agree, clock
from commsched.run.job.clock import Clock, now
from commsched.run.job.ending import say
from commsched.run.job.fabric import fabric
from commsched.run.job.lock import locked_by_job
from commsched.run.job.watchdog import Watchdog
from commsched.timeline.header import Fallback, RunHeader, Switch, Verified
from commsched.timeline.model import Timeline
from commsched.timeline.parts import PartHeader, PartWriter, part_path, remove_parts

LEAD = 0.05  # s from the agreement on the start to the start


class Measurement:
    """Clocks, placement and spans of a run; every rank makes a Measurement and finishes it.

    Every rank appends its spans to a part file beside `path` (if `path` is a device or a pipe, in
    the folder of `unnamed`); the parts are removed once rank 0 has all spans. `known` is the
    caller's part of the timeline's header. Meanwhile `path` is locked.
    """

    def __init__(self, plan: Plan, comm: MPI.Intracomm, path: Path, known: RunHeader) -> None:
        self._plan, self._comm, self._path = plan, comm, path
        self._locks = ExitStack()
        self._locks.enter_context(locked_by_job(path, comm))
        meta = _header(plan, comm, known)
        self._base = self._parts()
        if comm.rank == 0:
            remove_parts(self._base)  # left by a crashed run, perhaps with more ranks
        self._aligned = clock.align(comm)
        self.start = common_start(comm, self._aligned)  # on this rank's clock
        self._part = PartHeader(
            plan_hash=plan.hash,
            ranks=comm.size,
            rank=comm.rank,
            clock_offset_us=self._aligned.offset * 1e6,
            clock_uncertainty_us=self._aligned.uncertainty * 1e6,
            t0=self.start + self._aligned.offset,
            streams=STREAMS,
            names=tuple(STRATEGIES[plan.strategy].operations(plan)),
            meta=meta,
        )
        self._writer = PartWriter(
            self._base, self._part, steps_at_once(comm.size, len(self._part.names))
        )
        self.recorder = Recorder(comm.rank, self._writer)

    def _parts(self) -> Path:
        """Return the base name of the part files; for a device it is not the path."""
        special = agree.on_all_ranks(lambda: files.is_special(self._path), self._comm)
        if not agree.largest(special, self._comm):
            return self._path
        base = unnamed(self._comm)
        agree.on_all_ranks(lambda: make_room(base), self._comm)
        return base

    def follow(self, plan: Plan) -> None:
        """Add the operations of another plan."""
        self._part.names = (*self._part.names, *STRATEGIES[plan.strategy].operations(plan))

    def wait_for_start(self) -> None:
        """Sleep until all ranks start."""
        time.sleep(max(0.0, self.start - now()))

    @property
    def _where(self) -> str:
        part_0 = part_path(self._base, 0)
        return f"{self._base}.rank*.jsonl, which `commsched show` reads as {part_0}"

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let an interrupt print where the spans so far lie, and which command reads them.

        An interrupt during a wait for a lock becomes the lock's error.
        """
        try:
            yield
        except (KeyboardInterrupt, RuntimeError) as error:
            if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
                raise
            told = f"interrupted; the spans so far lie in {self._where}"
            raise KeyboardInterrupt(told) from None

    def finish(
        self,
        engine: Engine,
        dog: Watchdog,
        *,
        steps: int,
        verified: Verified | None = None,
        fallbacks: tuple[Fallback, ...] | None = None,
        switches: tuple[Switch, ...] | None = None,
    ) -> Timeline | None:
        """Bring all spans to rank 0, which writes the file; other ranks return None.

        Rank 0 returns the timeline, or the newest steps of a long run. The engine must have stopped
        on all ranks. Without a span there is no file, and rank 0 prints that.
        """
        self.recorder.close()
        part, comm = self._part, self._comm
        if not agree.largest(len(self._writer.ends), comm):
            self._writer.path.unlink(missing_ok=True)
            self._locks.close()
            if comm.rank == 0:
                say(f"{self._path}: not written, because no step began and so there are no spans")
            return None
        worst = _worst(self._aligned, clock.align(comm))
        part.clock_uncertainty_us = agree.largest(worst, comm) * 1e6
        told = agree.gather_text("\n".join(engine.communication.waiting.told), comm)
        part.meta = msgspec.structs.replace(
            part.meta,
            warnings=tuple(line for text in told for line in text.splitlines()),
            steps=steps,
            first_step=engine.first,
            decisions={k: v if isfinite(v) else None for k, v in engine.earlier.items()} or None,
            polling_cpu_s=tuple(agree.gather_numbers(engine.communication.cpu, comm)),
            verified=verified,
            fallbacks=fallbacks,
            switches=switches,
        )
        dog.stage(f"merging the spans in {self._where}")
        apart = teams_apart(self._plan, STRATEGIES[self._plan.strategy].operations(self._plan))
        try:
            with self._locks:
                return merge(comm, self._path, self._writer, part, apart, dog)
        except CommschedError as error:  # raised on all ranks
            raise Agreed(f"{error}; all spans lie in {self._where}") from None


def _header(plan: Plan, comm: MPI.Intracomm, known: RunHeader) -> RunHeader:
    """Complete the header with the facts that are known before the run starts."""
    hosts, different = agree.placement(plan.machine, comm)
    here, there = fabric(comm), plan.machine.fabric
    return msgspec.structs.replace(
        known,
        net=plan.net.name,
        machine=plan.machine.name,
        strategy=plan.strategy,
        launches=launch_notes(plan),
        mpi=MPI.Get_library_version().splitlines()[0].strip("\x00 "),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        hosts=tuple(hosts),
        placement=tuple(different),
        fabric=here,
        other_fabric=() if there is None else tuple(there.differences(here)),
    )


def common_start(comm: MPI.Intracomm, aligned: Clock) -> float:
    """Agree on a moment in the near future; return that moment on this rank's clock."""
    comm.Barrier()
    (moment,) = agree.broadcast_numbers(0, [now() + LEAD], comm)
    return moment - aligned.offset


def _worst(before: Clock, after: Clock) -> float:
    """Return the clock's uncertainty over the whole run in s, including drift."""
    return max(before.uncertainty, after.uncertainty) + abs(after.offset - before.offset)
