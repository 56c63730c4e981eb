"""Results of a simulation: the timeline, the critical path, and the memory per rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.machine.fabric import shape
from commsched.machine.trust import doubts, errors_of
from commsched.plan.model import Plan
from commsched.plan.notes import launch_notes
from commsched.program.launch_ops import teams_apart
from commsched.program.model import STREAMS, After, Kind, by_name
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Memory
from commsched.simulate.breakdown import Makeup, makeups, message_makeup
from commsched.simulate.critical_path import PathPart, StepPath, critical_path, step_path
from commsched.simulate.timetable import EVERY, Columns, PlacedOp, by_source
from commsched.timeline.cycles import totals, windows
from commsched.timeline.header import Predicted
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Timeline
from commsched.timeline.totals import Totals
from commsched.units import significant

SPANS = 500_000  # limit for exposed and hidden time, which take 2 s


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """A simulated run."""

    plan: Plan
    steps: int
    placed: list[PlacedOp]
    memory: Memory
    changes: Mapping[int, Plan] = field(default_factory=dict)  # first step -> plan from there on

    def timeline(self, ranks: int | None = None) -> Timeline:
        """Return the spans of all ranks, or of the first `ranks` with the totals of all."""
        found = self._spans(ranks)
        if ranks is None or ranks >= self.plan.machine.size:
            return found
        header = msgspec.structs.replace(found.header, totals=self.totals)
        return replace(found, header=header)

    def _spans(self, ranks: int | None, *, makeups: bool = True) -> Timeline:
        """Return the spans of all or the first ranks; the totals of a step need no makeups."""
        names = tuple(dict.fromkeys(p.op.name for p in self.placed if p.step == self.steps - 1))
        names = tuple(dict.fromkeys([*names, *(p.op.name for p in self.placed)]))
        to_name = {name: i for i, name in enumerate(names)}
        to_stream = {stream: i for i, stream in enumerate(STREAMS)}
        keep = _columns(self.placed, ranks or self.plan.machine.size)
        columns = [keep[int(p.ranks[0])] for p in self.placed]
        counts = [len(p.ranks[k]) for p, k in zip(self.placed, columns, strict=True)]

        def column(values: list[int], kind: type[np.generic]) -> npt.NDArray[np.int32]:
            return np.repeat(np.array(values), counts).astype(kind)

        found = [
            first.source.times(EVERY, keep[int(first.ranks[0])])
            for first, *_ in by_source(self.placed)
        ]
        start, end, sent = (np.concatenate([t[i].ravel() for t in found]) for i in range(3))
        made, coded = self._makeups() if makeups else ({}, [0.0] * len(self.placed))
        whole = Timeline(
            header=self._header(made),
            plan_hash=self.plan.hash,
            ranks=self.plan.machine.size,
            streams=STREAMS,
            names=names,
            rank=np.concatenate(
                [p.ranks[k] for p, k in zip(self.placed, columns, strict=True)]
            ).astype(np.int32),
            stream=column([to_stream[p.op.stream] for p in self.placed], np.int32),
            name=column([to_name[p.op.name] for p in self.placed], np.int32),
            step=column([p.step for p in self.placed], np.int32),
            start=start,
            end=end,
            waited=np.zeros(sum(counts)),
            nbytes=sent,
            coded=np.minimum(np.repeat(coded, counts), end - start),
        )
        return waiting_filled(whole, teams_apart(self.plan, by_name(p.op for p in self.placed)))

    def _header(self, made: Mapping[str, Makeup]) -> Predicted:
        machine, batches = self.plan.machine, STRATEGIES[self.plan.strategy].batches(self.plan)
        return Predicted(
            net=self.plan.net.name,
            machine=machine.name,
            strategy=self.plan.strategy,
            steps=self.steps,
            fabric=machine.fabric,
            warnings=self.warnings,
            launches=launch_notes(self.plan),
            batches=None if batches == machine.size else batches,
            after=_inputs(self.placed),
            exchanges={
                name: (significant(part.latency * 1e6), significant(part.bandwidth * 1e6))
                for name, part in made.items()
            },
            residuals=errors_of(machine, self.plan.net.occupies_cores),
            within=self._within,
        )

    @property
    def _within(self) -> dict[str, str]:
        """Say which operations contain the seconds that PyTorch measures as separate spans."""
        found, own = {}, {p.op.name for p in self.placed}
        if "optimizer" not in own and any(p.op.kind is Kind.APPLY for p in self.placed):
            found["optimizer"] = "the apply of the launches"
        if "data" not in own and self.plan.net.data:
            found["data"] = f"the forward of {self.plan.net.layers[0].name}"
        return found

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warn of a poor calibration, and of a shape that differs from the calibrated one."""
        machine = self.plan.machine
        found = doubts(errors_of(machine))
        if machine.fabric is None or machine.fabric.ranks == machine.ranks_of_node:
            return found
        was, now = shape(machine.fabric.ranks), shape(machine.ranks_of_node)
        return (
            *found,
            f"the machine was calibrated as {was}, not as {now}: how far off its predictions are"
            " there was not measured",
        )

    @cached_property
    def starts(self) -> Floats:
        """Return when each rank begins to compute in each step: (steps, ranks) s."""
        found = np.full((self.steps, self.plan.machine.size), np.inf)
        for p in self.placed:
            if p.op.stream == "compute" and p.number == 0:
                row = found[p.step]
                row[p.ranks] = np.minimum(row[p.ranks], p.source.start)
        return found

    @cached_property
    def end(self) -> float:
        """Return when the last operation of any rank ends, s."""
        return max(float(p.source.end.max()) for p in self.placed if p.number == 0)

    @cached_property
    def iterations(self) -> Floats:
        """Return the s between the last rank's beginnings of two steps in a row: (steps - 1,)."""
        found: Floats = np.diff(self.starts.max(axis=1))
        return found

    @cached_property
    def totals(self) -> Totals:
        """Return the totals of a step; of very many ranks, only the first ones' spans are asked."""
        size = self.plan.machine.size
        spans = sum(len(p.ranks) for p in self.placed)
        some = max(1, size * SPANS // max(spans, SPANS))
        found = totals(self._spans(some, makeups=False))
        if not found.counted:
            return found
        lengths = windows(self.iterations[-found.counted :], found.cycle)
        return msgspec.structs.replace(found, iteration=tuple(lengths.tolist()))

    def _messages(self) -> dict[str, Makeup]:
        """Return the makeup of each message's two ends, by name."""
        ranks = {p.op.name: int(p.ranks[0]) for p in self.placed if p.op.match}
        return {
            p.op.name: message_makeup(self.plan.machine, p.op, ranks[p.op.name], ranks[p.op.match])
            for p in self.placed
            if p.op.match
        }

    def _makeups(self) -> tuple[dict[str, Makeup], list[float]]:
        """Return each exchange's makeup, in its last plan; and the s of coding of placed ops."""
        made: dict[str, Makeup] = {}
        coded: list[float] = []
        starts = [0, *sorted(self.changes), self.steps]
        for first, stop in pairwise(starts):
            here = [p for p in self.placed if first <= p.step < stop]
            of = makeups(self.changes.get(first, self.plan), (p.op for p in here))
            coded += [of[p.op.name].coded if p.op.name in of else 0.0 for p in here]
            made |= of
        return made | self._messages(), coded

    @cached_property
    def critical_path(self) -> list[PathPart]:
        """Return the operations that must get faster for the run to get faster, first to last."""
        return critical_path(self.placed, self.changes)

    @cached_property
    def step_path(self) -> StepPath | None:
        """Return the critical path of the counted steps, in whole cycles; None if none counts."""
        found = self.totals
        if not found.counted:
            return None
        whole = found.counted // found.cycle * found.cycle
        return step_path(self.placed, self.starts, whole, self.changes)


def _columns(placed: Sequence[PlacedOp], most: int) -> dict[int, Columns]:
    """Return the places of the ranks below a number in each role, by the role's first rank."""
    roles = {int(p.ranks[0]): p.ranks for p in placed}
    return {
        role: EVERY if int(ranks.max()) < most else np.flatnonzero(ranks < most)
        for role, ranks in roles.items()
    }


def _inputs(placed: list[PlacedOp]) -> dict[str, tuple[After, ...]]:
    """Return each operation's inputs on its own rank, of any rank and step; empty for a RECV."""
    found: dict[str, dict[After, None]] = {}
    own = ((p.op.after, p.op.name) for p in placed if p.op.kind is not Kind.RECV)
    for after, name in dict.fromkeys(own):
        found.setdefault(name, {}).update(dict.fromkeys(after))
    return {name: tuple(inputs) for name, inputs in found.items()}
