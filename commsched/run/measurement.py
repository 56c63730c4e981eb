"""A measurement from its common start to its one timeline file."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.plan.model import Plan
from commsched.program.model import STREAMS
from commsched.program.registry import STRATEGIES
from commsched.run.engine.engine import Engine
from commsched.run.engine.recorder import Recorder
from commsched.run.job import agree, clock
from commsched.run.job.clock import Clock, now
from commsched.run.job.fabric import fabric
from commsched.timeline import file as timeline_file
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Span, Timeline
from commsched.timeline.parts import PartWriter, remove_parts

LEAD = 0.05  # s from the agreement on the start to the start


class Measurement:
    """Clocks, placement and spans of all ranks; every rank makes one and finishes it.

    Every rank appends its spans to a file of its own beside `path`; they are removed once rank 0
    has all spans. `meta` goes into the timeline.
    """

    def __init__(
        self, plan: Plan, comm: MPI.Intracomm, path: Path, meta: Mapping[str, Any]
    ) -> None:
        self._plan, self._comm, self._path = plan, comm, path
        hosts, different = agree.placement(plan.machine, comm)
        found = _fabric(plan, comm)
        if comm.rank == 0:
            remove_parts(path)  # of a run that crashed, perhaps with more ranks
        self._aligned = clock.align(comm)
        self.start = _common_start(comm, self._aligned)  # on this rank's clock
        self._header = _header(plan, comm, self._aligned, self.start)
        self._header["meta"] |= {"hosts": hosts, "placement": different, **found, **meta}
        self.recorder = Recorder(comm.rank, PartWriter(path, comm.rank, self._header))

    def follow(self, plan: Plan) -> None:
        """Know the operations of another plan, too."""
        names = (*self._header["names"], *STRATEGIES[plan.strategy].names(plan))
        self._header["names"] = tuple(dict.fromkeys(names))

    def wait_for_start(self) -> None:
        """Sleep until all ranks start."""
        time.sleep(max(0.0, self.start - now()))

    def finish(self, engine: Engine, meta: Mapping[str, Any]) -> Timeline | None:
        """Bring all spans to rank 0, which writes the file and returns it; others return None.

        The engine must have stopped, on all ranks.
        """
        self.recorder.close()
        header, comm = self._header, self._comm
        worst = _worst(self._aligned, clock.align(comm))
        header["clock_uncertainty_us"] = agree.largest(worst, comm) * 1e6
        header["meta"]["polling_cpu_s"] = agree.each(engine.communication.cpu, comm)
        header["meta"]["decisions"] = engine.buckets.decisions
        header["meta"] |= meta
        timeline = _collect(self._plan, comm, self.recorder, header)
        agree.together(lambda: self._write(timeline), comm)
        return timeline

    def _write(self, timeline: Timeline | None) -> None:
        if timeline is not None:
            timeline_file.write(self._path, timeline)
            remove_parts(self._path)


def _header(plan: Plan, comm: MPI.Intracomm, aligned: Clock, start: float) -> dict[str, Any]:
    """What a rank's file says before its spans."""
    return {
        "plan_hash": plan.hash,
        "ranks": comm.size,
        "clock_offset_us": aligned.offset * 1e6,
        "clock_uncertainty_us": aligned.uncertainty * 1e6,
        "t0": start + aligned.offset,
        "streams": STREAMS,
        "names": STRATEGIES[plan.strategy].names(plan),
        "meta": {
            "net": plan.graph.name,
            "machine": plan.machine.name,
            "strategy": plan.strategy,
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\x00 "),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
    }


def _fabric(plan: Plan, comm: MPI.Intracomm) -> dict[str, Any]:
    """The run's fabric, and how it differs from the one that the machine was calibrated on."""
    here, there = fabric(comm), plan.machine.fabric
    return {
        "fabric": machine_file.fabric_to_data(here),
        "other_fabric": [] if there is None else there.differences(here),
    }


def _common_start(comm: MPI.Intracomm, aligned: Clock) -> float:
    """A moment in the near future, the same on all ranks, on this rank's clock."""
    comm.Barrier()
    moment = np.array([now() + LEAD])
    comm.Bcast(moment, 0)
    return float(moment[0]) - aligned.offset


def _worst(before: Clock, after: Clock) -> float:
    """The clock's uncertainty over the whole run, drift included: s."""
    return max(before.uncertainty, after.uncertainty) + abs(after.offset - before.offset)


def _collect(
    plan: Plan, comm: MPI.Intracomm, recorder: Recorder, header: dict[str, Any]
) -> Timeline | None:
    """Bring all spans to rank 0, on its clock, relative to the start."""
    shift = header["clock_offset_us"] * 1e-6 - header["t0"]
    mine = [s._replace(start=s.start + shift, end=s.end + shift) for s in recorder.spans]
    rows = agree.gather_text(msgspec.json.encode(mine).decode(), comm)
    if comm.rank != 0:
        return None
    spans = [Span(*row) for text in rows for row in msgspec.json.decode(text)]
    timeline = Timeline.of(
        spans,
        kind="measured",
        plan_hash=plan.hash,
        ranks=comm.size,
        streams=header["streams"],
        names=header["names"],
        clock_uncertainty=header["clock_uncertainty_us"] * 1e-6,
        meta=header["meta"],
    )
    return waiting_filled(timeline, plan.apart(timeline.names))


def check_writable(path: Path) -> None:
    """Refuse a place where the timeline could not be written, before the work and not after."""
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise CommschedError(f"{path}: cannot be written there; give a file in a writable folder")
