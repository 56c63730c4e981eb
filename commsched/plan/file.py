"""Plans as JSON: readable, self-contained, with a hash over everything else in the file."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from commsched import files
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.net import file as graph_file
from commsched.net.bucket import Piece
from commsched.plan.model import Launch, Param, Plan, Reason
from commsched.units import significant

FORMAT = "commsched-plan/1"
# Left out of a launch: older plans keep their hash.
USUAL = {"among": "all", "purpose": "", "since": 0}
Name = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class ReasonFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    predicted_ms: Milliseconds
    runner_up: str = ""
    runner_up_ms: Milliseconds = 0.0
    margin_ms: float = 0.0
    opposite: str = ""
    opposite_margin_ms: float = 0.0


class LaunchFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    pieces: Annotated[list[tuple[Name, Count, Count]], msgspec.Meta(min_length=1)]
    after: Name
    method: Name
    stream: Literal["inside", "between"]
    payload: Literal["gradient", "parameter", "activation"] = "gradient"
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 0
    group: list[Count] = []
    every: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    lag: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    among: Literal["all", "node", "peers"] = "all"
    purpose: Literal["", "blocking", "cycling", "spread", "average", "refresh"] = ""
    since: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    reason: ReasonFile | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["commsched-plan/1"]
    strategy: Name
    params: dict[str, Param]
    mean: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    planner: str
    iteration_ms: Milliseconds = 0.0
    bound_ms: Milliseconds = 0.0
    max_error: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    launches: list[LaunchFile]
    machine: dict[str, Any]
    graph: dict[str, Any]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def digest(data: dict[str, Any]) -> str:
    """SHA-256 of a plan's data without its hash: canonical JSON, keys sorted, no spaces."""
    bare = {key: value for key, value in data.items() if key != "hash"}
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def to_data(plan: Plan) -> dict[str, Any]:
    """The file content of a plan, with its hash."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "strategy": plan.strategy,
        "params": dict(plan.params),
        "mean": plan.mean,
        "seed": plan.seed,
        "planner": plan.planner,
        "iteration_ms": significant(plan.iteration * 1e3),
        "bound_ms": significant(plan.bound * 1e3),
        "launches": [_launch_data(launch) for launch in plan.launches],
        "machine": machine_file.to_data(plan.machine),
        "graph": graph_file.to_data(plan.graph),
    }
    if plan.max_error:
        data["max_error"] = plan.max_error
    data["hash"] = digest(data)
    return data


def _launch_data(launch: Launch) -> dict[str, Any]:
    reason = launch.reason
    file = LaunchFile(
        name=launch.name,
        pieces=[(piece.tensor, piece.start, piece.stop) for piece in launch.pieces],
        after=launch.after,
        method=launch.method,
        stream=launch.stream,  # type: ignore[arg-type]
        payload=launch.payload,  # type: ignore[arg-type]
        priority=launch.priority,
        group=list(launch.group),
        every=launch.every,
        lag=launch.lag,
        among=launch.among,  # type: ignore[arg-type]
        purpose=launch.purpose,  # type: ignore[arg-type]
        since=launch.since,
        reason=None
        if reason is None
        else ReasonFile(
            predicted_ms=significant(reason.seconds * 1e3),
            runner_up=reason.runner_up,
            runner_up_ms=significant(reason.runner_up_seconds * 1e3),
            margin_ms=significant(reason.margin * 1e3),
            opposite=reason.opposite,
            opposite_margin_ms=significant(reason.opposite_margin * 1e3),
        ),
    )
    data: dict[str, Any] = msgspec.to_builtins(file)
    for key, usual in USUAL.items():
        if data[key] == usual:
            del data[key]
    return data


def from_data(data: Any, where: str) -> Plan:
    """Check and build a plan from JSON data; `where` names the file in errors."""
    file = files.convert(data, PlanFile, where)
    actual = digest(data)
    if file.hash != actual:
        raise CommschedError(
            f"{where}: the plan was changed after it was made: its hash is {actual[:12]}..., the"
            f" file says {file.hash[:12]}...; plan again instead of editing it"
        )
    plan = Plan(
        graph=graph_file.from_data(file.graph, f"{where}: graph"),
        machine=machine_file.from_data(file.machine, f"{where}: machine"),
        launches=tuple(_launch(launch) for launch in file.launches),
        strategy=file.strategy,
        params=file.params,
        mean=file.mean,
        seed=file.seed,
        planner=file.planner,
        iteration=file.iteration_ms * 1e-3,
        bound=file.bound_ms * 1e-3,
        max_error=file.max_error,
        hash=file.hash,
    )
    try:
        plan.check()
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None
    return plan


def _launch(file: LaunchFile) -> Launch:
    reason = file.reason
    return Launch(
        name=file.name,
        pieces=tuple(Piece(*piece) for piece in file.pieces),
        after=file.after,
        method=file.method,
        stream=file.stream,
        payload=file.payload,
        priority=file.priority,
        group=tuple(file.group),
        every=file.every,
        lag=file.lag,
        among=file.among,
        purpose=file.purpose,
        since=file.since,
        reason=None
        if reason is None
        else Reason(
            seconds=reason.predicted_ms * 1e-3,
            runner_up=reason.runner_up,
            runner_up_seconds=reason.runner_up_ms * 1e-3,
            margin=reason.margin_ms * 1e-3,
            opposite=reason.opposite,
            opposite_margin=reason.opposite_margin_ms * 1e-3,
        ),
    )


def read(path: str | Path) -> Plan:
    """Read and check a plan file."""
    return from_data(files.parse(files.read_text(path), str(path)), str(path))


def write(path: str | Path, plan: Plan) -> None:
    """Write a plan file."""
    files.write(path, to_data(plan))


def frozen(plan: Plan) -> Plan:
    """The plan as its file gives it back, hash included: what every user of it works with."""
    once = from_data(to_data(plan), "plan")
    return replace(once, hash=to_data(once)["hash"])  # reading turns 1 into 1.0
