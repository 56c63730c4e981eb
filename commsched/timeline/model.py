"""A timeline: the spans of all ranks as columns, so that millions of spans stay cheap."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.timeline.header import Measured, Predicted

Indices = npt.NDArray[np.int32]


class Span(NamedTuple):
    """One operation on one stream of one rank."""

    rank: int
    stream: str
    name: str  # identity of the operation within a step, such as "b3/exchange"
    step: int
    start: float  # s since the run's start, on rank 0's clock
    end: float  # s
    waited: float  # s of the span spent waiting for a peer
    nbytes: float  # B handed to MPI by this rank
    coded: float = 0.0  # s of an exchange in which this rank encoded, added or decoded


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Spans as parallel columns of length n; `stream` and `name` index into their tables."""

    header: Predicted | Measured
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
    clock_uncertainty: float = 0.0  # s, the worst over ranks

    def __post_init__(self) -> None:
        if not len(self.coded):
            object.__setattr__(self, "coded", np.zeros(len(self.rank)))

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[Span]:
        return (self.span(i) for i in range(len(self)))

    def span(self, i: int) -> Span:
        """Return row `i`."""
        row = {column: getattr(self, column)[i].item() for column in Span._fields}
        words = {"stream": self.streams[row["stream"]], "name": self.names[row["name"]]}
        return Span(**row | words | {"nbytes": int(row["nbytes"])})

    def select(self, keep: npt.NDArray[Any]) -> "Timeline":
        """Return the rows that `keep` (a mask or indices) picks, with the tables unchanged."""
        return replace(self, **{column: getattr(self, column)[keep] for column in Span._fields})

    @property
    def kind(self) -> str:
        """Return the header's kind: "predicted" or "measured"."""
        return self.header.kind

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the reader must know, such as that a rank is missing."""
        return self.header.warnings

    @property
    def prediction(self) -> Predicted:
        """Return the header of a prediction, or an empty one for a measured timeline."""
        return self.header if isinstance(self.header, Predicted) else Predicted()

    @property
    def run(self) -> Measured:
        """Return the header of a run, or an empty one for a prediction."""
        return self.header if isinstance(self.header, Measured) else Measured()

    @classmethod
    def of(
        cls,
        spans: Iterable[Span],
        *,
        header: Predicted | Measured,
        plan_hash: str,
        ranks: int,
        streams: Iterable[str] = (),
        names: Iterable[str] = (),
        clock_uncertainty: float = 0.0,
    ) -> "Timeline":
        """Build the columns from spans; words that a table lacks follow as they appear."""
        rows = list(spans)
        rank, stream, name, step, *numbers = zip(*rows, strict=True) if rows else [()] * 9
        tables = [tuple(dict.fromkeys((*streams, *stream))), tuple(dict.fromkeys((*names, *name)))]
        index = [{word: i for i, word in enumerate(table)} for table in tables]
        start, end, waited, nbytes, coded = (np.array(column, np.float64) for column in numbers)
        return cls(
            header=header,
            plan_hash=plan_hash,
            ranks=ranks,
            streams=tables[0],
            names=tables[1],
            rank=np.array(rank, np.int32),
            stream=np.array([index[0][word] for word in stream], np.int32),
            name=np.array([index[1][word] for word in name], np.int32),
            step=np.array(step, np.int32),
            start=start,
            end=end,
            waited=waited,
            nbytes=nbytes,
            coded=coded,
            clock_uncertainty=clock_uncertainty,
        )
