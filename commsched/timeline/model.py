"""A timeline: the spans of all ranks as columns, so that millions of spans stay cheap."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.timeline.header import Predicted, RunHeader
from commsched.timeline.names import decision_key

Indices = npt.NDArray[np.int32]


class Span(NamedTuple):
    """One operation on one stream of one rank."""

    rank: int
    stream: str
    name: str  # identifies the operation within a step, such as "b3/exchange"
    step: int
    start: float  # s since the run's start, on rank 0's clock
    end: float  # s
    waited: float  # s of the span spent waiting for a peer
    nbytes: float  # B handed to MPI by this rank
    coded: float = 0.0  # s of an exchange in which this rank encoded, added or decoded
    decided: float | None = None  # the group's decision; inf: not finite


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Spans as parallel columns of length n; `stream` and `name` index into their tables."""

    header: Predicted | RunHeader
    plan_hash: str
    ranks: int
    streams: tuple[str, ...]  # in drawing order
    names: tuple[str, ...]  # in program order
    rank: Indices
    stream: Indices
    name: Indices
    step: Indices
    start: Floats
    end: Floats
    waited: Floats
    nbytes: Floats
    coded: Floats = field(default_factory=lambda: np.zeros(0))  # default: n zeros
    decided: Floats = field(default_factory=lambda: np.zeros(0))  # nan, the default: no decision
    clock_uncertainty: float = 0.0  # s, the worst over ranks

    def __post_init__(self) -> None:
        if not len(self.coded):
            object.__setattr__(self, "coded", np.zeros(len(self.rank)))
        if not len(self.decided):
            object.__setattr__(self, "decided", np.full(len(self.rank), nan))

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[Span]:
        return (self.span(i) for i in range(len(self)))

    def span(self, i: int) -> Span:
        """Return row `i`."""
        row = {column: getattr(self, column)[i].item() for column in Span._fields}
        words = {"stream": self.streams[row["stream"]], "name": self.names[row["name"]]}
        row["decided"] = None if isnan(row["decided"]) else row["decided"]
        return Span(**row | words | {"nbytes": int(row["nbytes"])})

    def select(self, keep: npt.NDArray[Any] | slice) -> "Timeline":
        """Return the rows selected by `keep`, a mask, indices or a slice; the tables stay."""
        return replace(self, **{column: getattr(self, column)[keep] for column in Span._fields})

    @property
    def kind(self) -> str:
        """Return the header's kind: "predicted" or "measured"."""
        return self.header.kind

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings for readers, such as that a rank is missing."""
        return self.header.warnings

    def warned(self, warning: str) -> "Timeline":
        """Return the timeline with one more warning."""
        warnings = (*self.warnings, warning)
        return replace(self, header=msgspec.structs.replace(self.header, warnings=warnings))

    @property
    def prediction(self) -> Predicted:
        """Return the header of a prediction, or an empty one for a measured timeline."""
        return self.header if isinstance(self.header, Predicted) else Predicted()

    @property
    def run(self) -> RunHeader:
        """Return the header of a run, or an empty one for a prediction."""
        return self.header if isinstance(self.header, RunHeader) else RunHeader()

    @property
    def decisions(self) -> dict[str, float]:
        """Return the decisions of ranks, by `decision_key`; nan: not finite.

        If groups of ranks decided differently, the decision of the first rank counts.
        """
        rows = np.flatnonzero(~np.isnan(self.decided))
        rows = rows[np.argsort(-self.rank[rows], kind="stable")]
        columns = (self.step[rows].tolist(), self.name[rows].tolist(), self.decided[rows].tolist())
        return self.run.agreed | {
            decision_key(step, self.names[name]): value if isfinite(value) else nan
            for step, name, value in zip(*columns, strict=True)
        }

    @classmethod
    def of(
        cls,
        spans: Iterable[Span],
        *,
        header: Predicted | RunHeader,
        plan_hash: str,
        ranks: int,
        streams: Iterable[str] = (),
        names: Iterable[str] = (),
        clock_uncertainty: float = 0.0,
    ) -> "Timeline":
        """Build the columns from spans; words missing in a table are appended in order."""
        columns = Columns(streams, names)
        columns.add(spans)
        return columns.timeline(
            header=header, plan_hash=plan_hash, ranks=ranks, clock_uncertainty=clock_uncertainty
        )


class Columns:
    """Columns of spans that grow piece by piece, so that only one piece is Python objects.

    Columns grow in place: the system moves large arrays without a second copy.
    """

    def __init__(self, streams: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._streams, self._names = Table(streams), Table(names)
        self._columns = {what: np.empty(0, _kind(what)) for what in Span._fields}
        self._count = self._room = 0

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans; words missing in a table are appended in order."""
        rows = list(spans)
        if not rows:
            return
        rank, stream, name, step, *numbers = zip(*rows, strict=True)
        indices = self._streams.indices(stream), self._names.indices(name)
        self.add_columns(rank, *indices, step, *numbers)

    def add_timeline(self, t: Timeline) -> None:
        """Add the spans of a timeline with the same tables."""
        self.add_columns(*(getattr(t, column) for column in Span._fields))

    def add_columns(self, *columns: Any) -> None:
        """Add columns in the order of a span's fields, with indices into the tables."""
        before, self._count = self._count, self._count + len(columns[0])
        if self._count > self._room:
            self._room = max(self._count, self._room * 9 // 8)
            for column in self._columns.values():
                column.resize(self._room, refcheck=False)
        for mine, column in zip(self._columns.values(), columns, strict=True):
            mine[before : self._count] = column

    def taken(self) -> dict[str, Any]:
        """Return each column of all pieces, and drop the pieces."""
        found, self._columns = self._columns, {}
        for column in found.values():
            column.resize(self._count, refcheck=False)
        return found

    def timeline(self, **known: Any) -> Timeline:
        """Return the timeline of all pieces with the given other fields, and drop the pieces."""
        known |= {"streams": tuple(self._streams), "names": tuple(self._names)}
        return Timeline(**known, **self.taken())


def _kind(what: str) -> Any:
    return np.int32 if what in ("rank", "stream", "name", "step") else np.float64


class Table(dict[str, int]):
    """Words and their indices; a new word gets the next index."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__((word, i) for i, word in enumerate(dict.fromkeys(words)))

    def __missing__(self, word: str) -> int:
        self[word] = place = len(self)
        return place

    def indices(self, words: Iterable[str]) -> list[int]:
        """Return the indices of words."""
        return [self[word] for word in words]
