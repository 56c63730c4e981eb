"""Records what a checkout predicts and compares two records: proof that nothing has changed.

    python -m tests.unchanged record now.json [--tree CHECKOUT] [--traces FOLDER]
    python -m tests.unchanged compare tests/predictions-0.1.json now.json

Only the command line of commsched is used, so that any version from 0.2 on can be recorded (0.1,
whose record is kept, reads no units in files).

Recorded are the plans under traces/, plans rebuilt from its tables of validation and convergence,
the rows and trends of `reproduce`, and what tests/support/recorded_commands.py lists. All
planners are there: without --time-limit, `best` ends where nothing helps and draws nothing.
A validation table names no machine file: the calibrated testbed of traces/convergence stands for
every fabric between hosts, the demo's machine for shared memory, and tensors stay dense. A
convergence table holds no net: resnet32 stands for each of its nets. Left out are times that
`reproduce` measures, the operations of `compare`, hashes, sources and warnings.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.checkout import Checkout
from tests.support.recorded_commands import PRICES, each_step, laws, lines, listed_plans, uneven

ROOT = Path(__file__).resolve().parent.parent
STEPS = 5  # of a simulation whose line does not say "@ STEPS"
DRAWN = 8  # ranks whose spans are counted
LISTED = 40  # launches of a plan up to which each has a line of its own
FEW = 12  # launches up to which the operations of each are counted apart, not by method
DIGITS = 15  # significant, of a recorded number
RELATIVE = 1e-9  # numbers that differ by less are equal
# ... and so are numbers whose difference is below the noise of differences of clock times, s, and
# of the microseconds of a timeline file, which have three decimals.
NOISE = {"_ms": 1e-9, "_us": 2e-3, "": 1e-14}
IGNORED = {"format", "hash", "plan", "plan_hash", "source", "version", "warnings"}
# Numbers of a step that 0.2 defines anew (docs/reference/glossary.md): 0.1 counted the last step.
REDEFINED = {
    *("iteration_seconds", "mean_step_seconds", "iteration_p10", "iteration_p90"),
    *("held_out_errors", "exposed_seconds", "hidden_seconds", "bubble_seconds", "steps"),
    *("bytes_per_rank_and_step", "critical_path_seconds_per_step", "activations_known"),
    *("iteration", "prediction_interval", "why", "exposed_communication", "hidden_communication"),
    *("streams", "clock_uncertainty_us"),
}
SHARED = ("shared", "gpu")  # fabrics of the validation table that have no network


def recorded(checkout: Checkout) -> Iterator[tuple[str, Any]]:
    """Everything that is recorded, by command."""
    yield from kept(checkout)
    nets = checkout.run("models --json")
    yield "models", nets
    rebuilt = [*validated(checkout, nets["nets"]), *converged(checkout)]
    for line in (*rebuilt, *listed_plans()):
        yield f"plan {line}", planned(checkout, line)
    for line in lines(PRICES):
        found = checkout.run(line) or {}
        if "methods" in found:
            found["methods"] = {each.pop("method"): each for each in found["methods"]}
        yield line, found
    yield "reproduce", reproduced(checkout)


def kept(checkout: Checkout) -> Iterator[tuple[str, Any]]:
    """Every plan that is, or lies in, a file under traces/; then what needs a measured timeline."""
    folder = checkout.folder / "traces"
    for path in sorted(folder.rglob("*.json")):
        for place, plan in plans(json.loads(path.read_text())):
            (checkout.folder / "plan.json").write_text(json.dumps(plan))
            summary = checkout.run("show plan.json --json")
            name = f"{path.relative_to(checkout.folder)}{place}"
            yield f"simulate {name}", described(checkout, summary, STEPS)
    demo = "traces/demo/plan.json --steps 6 --replay traces/demo/measured.json --json"
    yield f"simulate {demo}", checkout.run(f"simulate {demo}")
    both = "compare traces/demo/predicted.json traces/demo/measured.json --json"
    found = checkout.run(both) or {}
    found.get("why", {}).pop("operations", None)
    yield both, {key: value for key, value in found.items() if not isinstance(value, list)}


def plans(data: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Plans in a file's data, each with its place."""
    if isinstance(data, dict):
        if {"launches", "machine", "graph"} <= data.keys():
            yield place, data
            return
        data = list(data.items())
    elif isinstance(data, list):
        data = list(enumerate(data))
    else:
        return
    for key, value in data:
        yield from plans(value, f"{place}/{key}")


def validated(checkout: Checkout, nets: list[dict[str, Any]]) -> Iterator[str]:
    """Plans as in the validation tables: for each net every method that a row has, a step each."""
    whole = {net["name"]: net["gradient_bytes"] for net in nets}
    methods: dict[tuple[str, str], dict[str, float]] = {}
    for path in sorted((checkout.folder / "traces/validation").glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            place = "demo" if row["fabric"] in SHARED else "convergence"
            found = methods.setdefault((place, row["net"]), {})
            found.setdefault(row["method"], row["nbytes"])
    for (place, net), found in methods.items():
        nbytes = next(iter(found.values()))
        sizes = f"--scale {nbytes / whole[net]:.6g} --bucket {nbytes / 8e6:.6g}"
        line = f"{net} --machine traces/{place}/machine.json --planner ddp-25mb {sizes}"
        yield each_step(line, list(found))


def converged(checkout: Checkout) -> Iterator[str]:
    """A plan as in the convergence tables: every method of a plain case, a step each."""
    methods: dict[str, None] = {}
    for path in sorted((checkout.folder / "traces/convergence").glob("*/table.json")):
        for case in json.loads(path.read_text())["cases"]:
            parts = case["method"].split(", ") if case["strategy"] == "sync" else []
            methods |= {part.split()[-1]: None for part in parts if "broadcast" not in part}
    line = "resnet32 --machine traces/convergence/machine.json --planner ddp-25mb --bucket 0.3"
    yield each_step(f"{line} --refresh 10 --jitter 0.1", list(methods))


def planned(checkout: Checkout, line: str) -> dict[str, Any]:
    """Plan what a line says, and simulate that plan."""
    words, _, steps = line.partition(" @ ")
    (checkout.folder / "plan.json").unlink(missing_ok=True)
    summary = checkout.run(f"plan {words} -o plan.json --json")
    if summary and summary.get("compute", {}).get("choice") == "scaled":  # 0.1 scaled no seconds
        summary = checkout.run(f"plan {words} --compute measured -o plan.json --json")
    return described(checkout, summary, int(steps or STEPS))


def described(checkout: Checkout, summary: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Describe plan.json, whose summary is known, and its simulation."""
    if summary is None:
        return {"failed": "plan"}
    timeline = checkout.folder / "timeline.json"
    timeline.unlink(missing_ok=True)
    options = f"--steps {steps} --ranks {DRAWN} -o timeline.json --json"
    report = checkout.run(f"simulate plan.json {options}")
    few = len(summary["launches"]) <= FEW
    kinds = {each["launch"]: each["launch" if few else "method"] for each in summary["launches"]}
    found = {"planned": brief(summary, json.loads((checkout.folder / "plan.json").read_text()))}
    if report is not None:
        found["report"] = report
    if timeline.exists():
        found["timeline_us"] = totals(json.loads(timeline.read_text()), kinds, steps)
    return found


def brief(summary: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """A plan: its launches in order, as one line each or, if they are many, as counts."""
    launches: list[dict[str, Any]] = summary.pop("launches")
    pieces = [launch.get("pieces") for launch in plan["launches"]]
    for key in ("seconds", "runner_up_seconds", "margin_seconds", "opposite_margin_seconds"):
        summary[key] = math.fsum(launch.pop(key) or 0.0 for launch in launches)
    told = [
        " ".join(map(str, [*filter(None, launch.values()), "pieces", _digest(piece)]))
        for launch, piece in zip(launches, pieces, strict=True)
    ]
    if len(told) <= LISTED:
        return summary | {"launches": told}
    counts = Counter(launch["method"] for launch in launches)
    return summary | {"launches": len(told), "methods": counts, "all": _digest(told)}


def _digest(data: object) -> str:
    return f"{zlib.crc32(json.dumps(data).encode()):08x}"


def totals(timeline: dict[str, Any], kinds: dict[str, str], steps: int) -> dict[str, list[float]]:
    """Operation -> spans, mean start, duration and waiting in us, and mean bytes, of some steps.

    `kinds` says under which name the operations of a launch are counted; others, such as forward,
    are counted together.
    """
    sums: dict[str, list[float]] = {}
    for event in timeline["traceEvents"]:
        if event["ph"] != "X" or event["args"]["step"] >= steps:
            continue
        args, name = event["args"], event["name"].split("/")
        ends = [end for end in range(1, len(name)) if "/".join(name[:end]) in kinds]
        kind = name[0]
        if ends:
            kind = "/".join([kinds["/".join(name[: ends[-1]])], *name[ends[-1] :]])
        values = (event["ts"], event["dur"], args.get("waited_us", 0.0), args.get("nbytes", 0.0))
        found = sums.setdefault(kind, [0.0] * 5)
        for place, value in enumerate((1, *values)):
            found[place] += value
    return {k: [s[0], *(value / s[0] for value in s[1:])] for k, s in sorted(sums.items())}


def reproduced(checkout: Checkout) -> dict[str, Any]:
    """Rows and trends of every paper, without the times that are measured."""
    found = {}
    for paper in checkout.run("reproduce --json") or ():
        for row in paper["rows"]:
            if row["measured"]:
                for key in ("predicted", "error", "met"):
                    row.pop(key, None)
        found[paper.pop("name")] = paper
    return found


def pruned(data: Any) -> Any:
    """The data without what is never compared, numbers rounded."""
    if isinstance(data, dict):
        return {key: pruned(value) for key, value in data.items() if key not in IGNORED}
    if isinstance(data, list):
        return [pruned(value) for value in data]
    return float(f"{data:.{DIGITS}g}") if isinstance(data, float) else data


def record(path: Path, tree: Path, traces: Path) -> None:
    """Write what a checkout predicts, a line per command."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "traces").symlink_to(traces.resolve())
        for name, data in {"laws.json": laws(), "uneven.json": uneven()}.items():
            (Path(folder) / name).write_text(json.dumps(data))
        checkout = Checkout(tree, Path(folder))
        for number, (command, data) in enumerate(recorded(checkout), 1):
            assert command not in found, f"{command} is listed twice"
            found[command] = json.dumps({command: pruned(data)}, separators=(",", ":"))[1:-1]
            said = f"[{number}, {checkout.seconds:.0f} s of a core] {command[:80]}"
            print(said, file=sys.stderr, flush=True)
        checkout.close()
    rough = path.with_name(f"{path.name}.{os.getpid()}")
    rough.write_text("{\n" + ",\n".join(found.values()) + "\n}\n")
    rough.replace(path)


def flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by path."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in pairs:
        if key in IGNORED | REDEFINED:
            continue
        place = f"{path} / {key}" if path else str(key)
        if isinstance(value, dict | list):
            yield from flat(value, place)
        else:
            yield place, value


def difference(path: str, old: Any, new: Any) -> float:
    """Relative difference of two leaves; 0 where they count as equal, infinite of a text."""
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
    if old == new or not numbers:
        return 0.0 if old == new else math.inf
    noise = next(noise for unit, noise in NOISE.items() if _has_unit(path, unit))
    apart, size = abs(old - new), max(abs(old), abs(new))
    return 0.0 if apart <= max(RELATIVE * size, noise) else apart / size


def _has_unit(path: str, unit: str) -> bool:
    return not unit or any(key.endswith(unit) for key in path.split(" / "))


def compare(first: Path, second: Path) -> int:
    """Print what differs; 1 where something does, or is only in the first record."""
    old, new = (dict(flat(json.loads(path.read_text()))) for path in (first, second))
    both = [path for path in old if path in new]
    apart = {path: difference(path, old[path], new[path]) for path in both}
    differing = {path: far for path, far in apart.items() if far}
    gone, added = ([p for p in a if p not in b] for a, b in ((old, new), (new, old)))
    for path, far in sorted(differing.items(), key=lambda pair: -pair[1]):
        print(f"{path}: {old[path]!r} -> {new[path]!r}  ({far:.3g})")
    for path in gone:
        print(f"only in {first}: {path}: {old[path]!r}")
    for path in added:
        print(f"only in {second}: {path}: {new[path]!r}")
    print(
        f"{len(both) - len(differing)} equal, {len(differing)} different,"
        f" {len(gone)} only in {first}, {len(added)} only in {second}"
    )
    return int(bool(differing or gone))


def main() -> int:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("record", help="write what a checkout predicts")
    p.add_argument("file", type=Path)
    p.add_argument("--tree", type=Path, default=ROOT, help="checkout; default: this one")
    p.add_argument("--traces", type=Path, help="folder of plans and tables; default: the tree's")
    p = commands.add_parser("compare", help="print what differs between two records")
    p.add_argument("first", type=Path)
    p.add_argument("second", type=Path)
    args = parser.parse_args()
    if args.command == "record":
        record(args.file, args.tree, args.traces or args.tree / "traces")
    else:
        return compare(args.first, args.second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
