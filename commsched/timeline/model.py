"""Spans of all ranks as columns, so that hundreds of thousands cost nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Span(NamedTuple):
    """One operation on one stream of one rank."""

    rank: int
    stream: str
    name: str  # identity of the operation within a step, e.g. "b3/exchange"
    step: int
    start: float  # s since the run's start, on rank 0's clock
    end: float  # s
    waited: float  # s of it spent waiting for a peer
    nbytes: int  # B handed to MPI by this rank
    coded: float = 0.0  # s of an exchange in which this rank encoded, added or decoded


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Spans as parallel columns of length n; `stream` and `name` index into their tables."""

    kind: str  # "predicted" or "measured"
    plan_hash: str
    ranks: int
    streams: tuple[str, ...]  # in drawing order
    names: tuple[str, ...]  # in program order
    rank: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    waited: npt.NDArray[np.float64]
    nbytes: npt.NDArray[np.float64]
    coded: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # none: zeros
    clock_uncertainty: float = 0.0  # s, the worst over ranks
    meta: Mapping[str, Any] = field(default_factory=dict)  # host, MPI, decisions, warnings ...

    def __post_init__(self) -> None:
        if not len(self.coded):
            object.__setattr__(self, "coded", np.zeros(len(self.rank)))

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[Span]:
        return (self.span(i) for i in range(len(self)))

    def span(self, i: int) -> Span:
        """Return row `i` with its names in words."""
        return Span(
            int(self.rank[i]),
            self.streams[self.stream[i]],
            self.names[self.name[i]],
            int(self.step[i]),
            float(self.start[i]),
            float(self.end[i]),
            float(self.waited[i]),
            int(self.nbytes[i]),
            float(self.coded[i]),
        )

    def select(self, keep: npt.NDArray[Any]) -> "Timeline":
        """Return the rows that `keep` (a mask or indices) picks, with all tables as they are."""
        columns = ("rank", "stream", "name", "step", "start", "end", "waited", "nbytes", "coded")
        return replace(self, **{column: getattr(self, column)[keep] for column in columns})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of this timeline must know, e.g. that a rank is missing."""
        found = self.meta.get("warnings")
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()

    @classmethod
    def of(cls, spans: Iterable[Span], **fields: Any) -> "Timeline":
        """Build the columns from spans; tables keep the order of first appearance."""
        rows = list(spans)
        streams = tuple(fields.pop("streams", None) or dict.fromkeys(s.stream for s in rows))
        names = tuple(fields.pop("names", None) or dict.fromkeys(s.name for s in rows))
        to_stream = {s: i for i, s in enumerate(streams)}
        to_name = {s: i for i, s in enumerate(names)}
        return cls(
            streams=streams,
            names=names,
            rank=np.array([s.rank for s in rows], np.int32),
            stream=np.array([to_stream[s.stream] for s in rows], np.int32),
            name=np.array([to_name[s.name] for s in rows], np.int32),
            step=np.array([s.step for s in rows], np.int32),
            start=np.array([s.start for s in rows], np.float64),
            end=np.array([s.end for s in rows], np.float64),
            waited=np.array([s.waited for s in rows], np.float64),
            nbytes=np.array([s.nbytes for s in rows], np.float64),
            coded=np.array([s.coded for s in rows], np.float64),
            **fields,
        )
