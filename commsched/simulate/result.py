"""What a simulation found: the timeline, the critical path, and the memory per rank."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.machine import Machine
from commsched.machine import file as machine_file
from commsched.machine.fabric import shape
from commsched.plan import Plan
from commsched.program import STREAMS, Op, is_exchange_stream
from commsched.simulate.makeup import Makeup, makeups
from commsched.strategies import Memory
from commsched.timeline import Timeline
from commsched.timeline.measure import waiting_filled
from commsched.units import significant

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """One operation of one step, for all ranks of its role."""

    op: Op
    step: int
    ranks: Ints
    start: Floats
    end: Floats
    sent: Floats


class PathPart(NamedTuple):
    """A stretch of the critical path: an operation on one rank that ended the wait of the next."""

    rank: int
    stream: str
    name: str
    step: int
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """A simulated run."""

    plan: Plan
    steps: int
    placed: list[Placed]
    memory: Memory
    changes: Mapping[int, Plan] = field(default_factory=dict)  # first step -> plan from there on

    def timeline(self, ranks: int | None = None) -> Timeline:
        """The spans of all ranks, or of the first `ranks`."""
        names = tuple(dict.fromkeys(p.op.name for p in self.placed if p.step == self.steps - 1))
        names = tuple(dict.fromkeys([*names, *(p.op.name for p in self.placed)]))
        to_name = {name: i for i, name in enumerate(names)}
        to_stream = {stream: i for i, stream in enumerate(STREAMS)}
        keep = [p.ranks < (ranks or self.plan.machine.size) for p in self.placed]
        counts = [int(k.sum()) for k in keep]

        def column(values: list[int], kind: type[np.generic]) -> npt.NDArray[np.int32]:
            return np.repeat(np.array(values), counts).astype(kind)

        def joined(field: str) -> Floats:
            return np.concatenate(
                [getattr(p, field)[k] for p, k in zip(self.placed, keep, strict=True)]
            )

        made, coded = self._makeups()
        lengths = joined("end") - joined("start")
        whole = Timeline(
            kind="predicted",
            plan_hash=self.plan.hash,
            ranks=self.plan.machine.size,
            streams=STREAMS,
            names=names,
            rank=joined("ranks").astype(np.int32),
            stream=column([to_stream[p.op.stream] for p in self.placed], np.int32),
            name=column([to_name[p.op.name] for p in self.placed], np.int32),
            step=column([p.step for p in self.placed], np.int32),
            start=joined("start"),
            end=joined("end"),
            waited=np.zeros(sum(counts)),
            nbytes=joined("sent"),
            coded=np.minimum(np.repeat(coded, counts), lengths),
            meta={
                "net": self.plan.graph.name,
                "machine": self.plan.machine.name,
                "strategy": self.plan.strategy,
                "steps": self.steps,
                "after": {p.op.name: list(map(list, p.op.after)) for p in self.placed},
                "exchanges": {
                    name: [significant(part.latency * 1e6), significant(part.bandwidth * 1e6)]
                    for name, part in made.items()
                },
                **_calibration(self.plan.machine),
            },
        )
        return waiting_filled(whole)

    def _makeups(self) -> tuple[dict[str, Makeup], list[float]]:
        """Each exchange's makeup, in its last plan; seconds of coding of all that is placed."""
        made: dict[str, Makeup] = {}
        coded: list[float] = []
        starts = [0, *sorted(self.changes), self.steps]
        for first, stop in pairwise(starts):
            here = [p for p in self.placed if first <= p.step < stop]
            of = makeups(self.changes.get(first, self.plan), (p.op for p in here))
            coded += [of[p.op.name].coded if p.op.name in of else 0.0 for p in here]
            made |= of
        return made, coded

    @cached_property
    def critical_path(self) -> list[PathPart]:
        """From the first operation to the last: what must get faster for the run to get faster."""
        by_lane: dict[tuple[int, str], list[int]] = defaultdict(list)
        where: dict[tuple[str, int], int] = {}
        before: list[int] = []
        for index, p in enumerate(self.placed):
            lane = by_lane[int(p.ranks[0]), p.op.stream]
            before.append(lane[-1] if lane else -1)
            lane.append(index)
            where[p.op.name, p.step] = index
        index = max(range(len(self.placed)), key=lambda i: float(self.placed[i].end.max()))
        column = int(self.placed[index].end.argmax())
        path: list[PathPart] = []
        while index >= 0:
            p = self.placed[index]
            end = float(p.end[column])
            if is_exchange_stream(p.op.stream) and p.start.max() < end:
                column = int(p.start.argmax())  # it begins in earnest with its last rank
            seconds = end - float(p.start[column])
            path.append(PathPart(int(p.ranks[column]), p.op.stream, p.op.name, p.step, seconds))
            keys = [(n, p.step - b) for n, b in p.op.after if p.step >= b]
            inputs = [where[key] for key in keys if key in where]
            candidates = [i for i in (before[index], *inputs) if i >= 0]
            if p.step in self.changes and all(self.placed[i].step < p.step for i in candidates):
                index = self._last_before(p.step)  # all ranks waited for all
                column = int(self.placed[index].end.argmax())
                continue
            index = max(candidates, key=lambda i: float(self.placed[i].end[column]), default=-1)
        return path[::-1]

    def _last_before(self, step: int) -> int:
        """The operation of earlier steps that ends last."""
        indices = [i for i, p in enumerate(self.placed) if p.step < step]
        return max(indices, key=lambda i: float(self.placed[i].end.max()))


def _calibration(machine: Machine) -> dict[str, Any]:
    """What a timeline says of the machine's calibration; nothing where there was none."""
    found: dict[str, Any] = {}
    if machine.held_out:
        found["residuals"] = [significant(cell.error) for cell in machine.held_out]
    if machine.fabric is not None:
        found["fabric"] = machine_file.fabric_to_data(machine.fabric)
        was, now = machine.fabric.ranks, machine.ranks_of_node
        if was != now:
            found["warnings"] = [
                f"the machine was calibrated as {shape(was)}, not as {shape(now)}: how far off"
                " its predictions are there was not measured"
            ]
    return found
