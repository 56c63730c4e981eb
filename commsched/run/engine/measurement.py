"""A measurement, from the common start of all ranks to one timeline file."""

import os
import platform
import time
from pathlib import Path

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.plan.model import Plan
from commsched.program.launch_ops import teams_apart
from commsched.program.model import STREAMS
from commsched.program.registry import STRATEGIES
from commsched.run.engine.engine import Engine
from commsched.run.engine.recorder import Recorder
from commsched.run.job import agree, clock
from commsched.run.job.clock import Clock, now
from commsched.run.job.fabric import fabric
from commsched.timeline import file as timeline_file
from commsched.timeline.header import Fallback, Measured, Switch, Verified
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Span, Timeline
from commsched.timeline.parts import PartHeader, PartWriter, remove_parts

LEAD = 0.05  # s from the agreement on the start to the start


class Measurement:
    """Clocks, placement and spans of all ranks; every rank makes one and finishes it.

    Every rank appends its spans to a file of its own beside `path`; they are removed once rank 0
    has all spans. `known` is the caller's part of the timeline's header.
    """

    def __init__(self, plan: Plan, comm: MPI.Intracomm, path: Path, known: Measured) -> None:
        self._plan, self._comm, self._path = plan, comm, path
        meta = _header(plan, comm, known)
        if comm.rank == 0:
            remove_parts(path)  # left by a crashed run, perhaps with more ranks
        self._aligned = clock.align(comm)
        self.start = _common_start(comm, self._aligned)  # on this rank's clock
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
        self.recorder = Recorder(comm.rank, PartWriter(path, self._part))

    def follow(self, plan: Plan) -> None:
        """Add the operations of another plan."""
        self._part.names = (*self._part.names, *STRATEGIES[plan.strategy].operations(plan))

    def wait_for_start(self) -> None:
        """Sleep until all ranks start."""
        time.sleep(max(0.0, self.start - now()))

    def finish(
        self,
        engine: Engine,
        *,
        steps: int,
        first_step: int | None = None,
        verified: Verified | None = None,
        fallbacks: tuple[Fallback, ...] | None = None,
        switches: tuple[Switch, ...] | None = None,
    ) -> Timeline | None:
        """Bring all spans to rank 0, which writes the file and returns it; others return None.

        The engine must have stopped, on all ranks.
        """
        self.recorder.close()
        part, comm = self._part, self._comm
        worst = _worst(self._aligned, clock.align(comm))
        part.clock_uncertainty_us = agree.largest(worst, comm) * 1e6
        told = agree.gather_text("\n".join(engine.communication.waiting.told), comm)
        part.meta = msgspec.structs.replace(
            part.meta,
            warnings=tuple(line for text in told for line in text.splitlines()),
            steps=steps,
            first_step=first_step,
            polling_cpu_s=tuple(agree.gather_numbers(engine.communication.cpu, comm)),
            decisions=engine.buckets.decisions,
            verified=verified,
            fallbacks=fallbacks,
            switches=switches,
        )
        timeline = _collect(self._plan, comm, self.recorder, part)
        agree.on_all_ranks(lambda: self._write(timeline), comm)
        return timeline

    def _write(self, timeline: Timeline | None) -> None:
        if timeline is not None:
            timeline_file.write(self._path, timeline)
            remove_parts(self._path)


def _header(plan: Plan, comm: MPI.Intracomm, known: Measured) -> Measured:
    """Add to the header what is known before the run starts."""
    hosts, different = agree.placement(plan.machine, comm)
    here, there = fabric(comm), plan.machine.fabric
    return msgspec.structs.replace(
        known,
        net=plan.net.name,
        machine=plan.machine.name,
        strategy=plan.strategy,
        mpi=MPI.Get_library_version().splitlines()[0].strip("\x00 "),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        hosts=tuple(hosts),
        placement=tuple(different),
        fabric=here,
        other_fabric=() if there is None else tuple(there.differences(here)),
    )


def _common_start(comm: MPI.Intracomm, aligned: Clock) -> float:
    """Agree on a moment in the near future; returns it on this rank's clock."""
    comm.Barrier()
    moment = np.array([now() + LEAD])
    comm.Bcast(moment, 0)
    return float(moment[0]) - aligned.offset


def _worst(before: Clock, after: Clock) -> float:
    """Return the clock's uncertainty over the whole run, drift included: s."""
    return max(before.uncertainty, after.uncertainty) + abs(after.offset - before.offset)


def _collect(
    plan: Plan, comm: MPI.Intracomm, recorder: Recorder, part: PartHeader
) -> Timeline | None:
    """Bring all spans to rank 0, on its clock, relative to the start."""
    shift = part.clock_offset_us * 1e-6 - part.t0
    mine = [s._replace(start=s.start + shift, end=s.end + shift) for s in recorder.spans]
    rows = agree.gather_text(msgspec.json.encode(mine).decode(), comm)
    if comm.rank != 0:
        return None
    timeline = Timeline.of(
        (Span(*row) for text in rows for row in msgspec.json.decode(text)),
        header=part.meta,
        plan_hash=plan.hash,
        ranks=comm.size,
        streams=part.streams,
        names=part.names,
        clock_uncertainty=part.clock_uncertainty_us * 1e-6,
    )
    return waiting_filled(timeline, teams_apart(plan, STRATEGIES[plan.strategy].operations(plan)))
