"""The header of a timeline, of a prediction or of a measured run.

These are the keys of `otherData.meta` in a timeline file; a key that is None is not in the file.
"""

from collections.abc import Mapping
from math import nan
from typing import Annotated, Any, ClassVar

import msgspec

from commsched import files
from commsched.machine.fabric import Fabric
from commsched.timeline.totals import Totals

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Milliseconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Count64 = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
RelativeError = Annotated[float, msgspec.Meta(gt=-1, le=1e6)]


class LaunchNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plan's statements about a launch, for readers that have only the timeline."""

    method: str
    tensors: tuple[str, ...]
    numel: Count64
    predicted_ms: Milliseconds | None = None  # of its exchange alone
    runner_up: str = ""
    runner_up_ms: Milliseconds = 0.0
    margin_ms: Milliseconds = 0.0  # by which the iteration would be longer with the runner-up
    opposite: str = ""  # the best compressing method if this one is dense, or the reverse
    opposite_margin_ms: Milliseconds = 0.0


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that predictions and runs share."""

    kind: ClassVar[str]
    verb: ClassVar[str]  # "calibrated" or "run", on `fabric`

    net: str | None = None
    machine: str | None = None
    strategy: str | None = None
    steps: Count | None = None
    fabric: Fabric | None = None  # of the machine's calibration, or of the run
    warnings: tuple[str, ...] = ()  # for example, that a rank is missing
    launches: Mapping[str, LaunchNote] = {}  # by name, the beginning of its operations' names

    def to_data(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return data


class Predicted(Header, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a simulation, with what `compare` needs to split an error by cause."""

    kind = "predicted"
    verb = "calibrated"

    batches: Count | None = None  # batches of the net in a step; None: as many as ranks
    after: Mapping[str, tuple[tuple[str, Count], ...]] = {}  # operation -> (input, steps back)
    # exchange -> us of latency and of bandwidth, for ranks that start together
    exchanges: dict[str, tuple[Microseconds, Microseconds]] = {}
    # (predicted - measured) / measured of iterations that the machine's calibration held out
    residuals: tuple[RelativeError, ...] = ()
    # span that only a run has, such as "data" -> predicted operations that include its seconds
    within: Mapping[str, str] = {}
    totals: Totals | None = None  # over all ranks, if the file has spans of some ranks only


class Switch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of plan during a run."""

    step: Annotated[int, msgspec.Meta(ge=1)]  # first step with the new plan
    plan: str  # hash
    why: str
    seconds: float | None = None  # of planning
    ratio: float | None = None  # measured over predicted time of the exchanges


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that left its error budget, and the dense methods that its launches then have."""

    tensor: str = ""
    step: int = 0  # step in which the error was measured
    error: float | None = None  # lost share of the norm; None: not finite
    budget: float = 0.0
    launches: tuple[str, ...]
    methods: tuple[str, ...] = ()  # earlier methods of the launches
    dense: tuple[str, ...]  # methods from step `since` on
    since: int


class Verified(msgspec.Struct, frozen=True):
    """The result of a comparison with dense sums."""

    largest_relative_error: Mapping[str, float | None]  # method -> L2 error; None: not finite


class RunHeader(Header, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a run."""

    kind = "measured"
    verb = "run"

    mpi: str | None = None  # library and version
    python: str | None = None
    cores: int | None = None  # usable by rank 0
    hosts: tuple[str, ...] | None = None  # by rank
    placement: tuple[str, ...] | None = None  # how the ranks' hosts differ from the plan's nodes
    other_fabric: tuple[str, ...] | None = None  # how `fabric` differs from the machine's
    compute: str | None = None  # source of compute: "emulated", "caller" or the net's name
    device: str | None = None  # None: NumPy
    buffers: str | None = None  # how MPI reaches arrays of the device
    first_step: Count | None = None  # of a run that continues from a state
    polling_cpu_s: tuple[float, ...] | None = None  # of the communication thread, by rank
    # decisions by `decision_key`; None: not finite; newer timelines have only decisions before
    # `first_step` here, and others in their spans
    decisions: Mapping[str, float | None] | None = None
    verified: Verified | None = None
    fallbacks: tuple[Fallback, ...] | None = None
    switches: tuple[Switch, ...] | None = None

    @property
    def agreed(self) -> dict[str, float]:
        """The decisions as numbers."""
        return {k: nan if v is None else v for k, v in (self.decisions or {}).items()}


def header_from_data(kind: str, data: Any, where: str = "") -> Predicted | RunHeader:
    """Convert the `meta` of a timeline file; unknown keys are ignored."""
    where = f"{where}meta of the {kind} timeline"
    if kind == Predicted.kind:
        return files.convert(data, Predicted, where)
    return files.convert(data, RunHeader, where)


def fabric_differences(a: Header, b: Header) -> tuple[str, ...]:
    """Return sentences on differences of two timelines' fabrics, and of a run's from its plan's."""
    found: list[str] = []
    for one in (a, b):
        if isinstance(one, RunHeader):
            found += one.other_fabric or ()
    if a.fabric is not None and b.fabric is not None:
        found += a.fabric.differences(b.fabric, (a.verb, b.verb))
    return tuple(dict.fromkeys(found))
