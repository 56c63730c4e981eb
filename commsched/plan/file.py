"""Plan files: readable, self-contained, with a hash over everything else."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from commsched import files, records
from commsched.errors import CommschedError
from commsched.plan.model import Plan

FORMAT = Plan.FORMAT


class Hashed(msgspec.Struct):
    """The keys of a plan file that are not part of the plan."""

    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def read(path: str | Path) -> Plan:
    """Read and check a plan file."""
    return from_data(files.parse(files.read_text(path), str(path)), str(path))


def write(path: str | Path, plan: Plan) -> None:
    """Write a plan file."""
    files.write(path, to_data(plan))


def from_data(data: Any, where: str) -> Plan:
    """Build and check a plan from parsed JSON; `where` names the file in errors."""
    bare = {k: data[k] for k in data if k != "hash"} if isinstance(data, dict) else data
    plan = records.read(Plan, bare, where)
    stated, actual = files.convert(data, Hashed, where).hash, records.digest(bare)
    if stated != actual:
        raise CommschedError(
            f"{where}: the plan was changed after it was made: its hash is {actual[:12]}..., the"
            f" file says {stated[:12]}...; plan again instead of editing it"
        )
    try:
        plan.check()
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None
    vars(plan)["hash"] = stated  # older versions wrote fewer keys
    return plan


def to_data(plan: Plan) -> dict[str, Any]:
    """Turn a plan into plain JSON data, with its hash."""
    data = records.to_data(plan)
    return data | {"hash": records.digest(data)}
