"""A comparison in words and as data."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from commsched import units
from commsched.timeline.breakdown import CAUSES

if TYPE_CHECKING:
    from commsched.timeline.attribute import Why
    from commsched.timeline.compare import Comparison, Operation, Pair


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return one line per row, the first `left` columns flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def table(c: "Comparison", limit: int | None) -> str:
    """Return the totals, then the operations with the largest differences first."""
    lines = [
        f"plan {c.plan_hash[:12]}, {c.ranks} ranks, medians of "
        f"{c.steps[0]} predicted and {c.steps[1]} measured steps",
        "",
    ]
    totals = [
        ("iteration", c.iteration),
        ("exposed communication", c.exposed),
        ("hidden communication", c.hidden),
        *((f"busy: {stream}", pair) for stream, pair in c.streams),
    ]
    head = ["in ms", "predicted", "measured", "difference", "error"]
    lines += aligned([head, *([name, *_cells(pair)] for name, pair in totals)])
    lines += ["", *_sureness(c), *_why(c, limit)]
    if c.operations:
        lines += ["", *_operations(c, limit)]
    for what, names in (("predicted", c.only_predicted), ("measured", c.only_measured)):
        if names:
            lines += ["", f"only {what}: {_listed(names)}"]
    if any(o.below_clock for o in c.operations):
        bound = units.seconds(c.clock_uncertainty)
        lines += ["", f"* shorter than the clocks' uncertainty of {bound}"]
    if c.warnings:
        lines += ["", *(f"warning: {sentence}" for sentence in c.warnings)]
    return "\n".join(lines)


def _sureness(c: "Comparison") -> list[str]:
    """Say which iterations were to be expected."""
    if c.interval is None:
        return []
    inside = c.interval.low <= c.iteration.measured <= c.interval.high
    hit = "holds the measured iteration" if inside else "does not hold the measured iteration"
    return [f"p10 to p90 of the prediction, {c.interval}, {hit};", c.interval.basis, ""]


def _why(c: "Comparison", limit: int | None) -> list[str]:
    """Return the parts of the iteration's error, then the operations that cause most of it."""
    if c.why is None:
        return ["the error cannot be split: no rank has all compared steps on both sides"]
    total = c.why.total
    whole = sum(total.values())
    scale = c.iteration.measured
    rows = [["why, in ms", "difference", "of the iteration"]]
    rows += [
        [name, _signed(value), f"{round(value / scale, 3) + 0.0:+.1%}" if scale else "-"]
        for name, value in (*total.items(), ("sum", whole))
    ]
    lines = [*aligned(rows), f"along the {c.why.along} chain of rank {c.why.rank}"]
    ranked = sorted(zip(c.why.names, c.why.values, strict=True), key=lambda x: -abs(x[1]).sum())
    shown = ranked if limit is None else ranked[:limit]
    if not shown:
        return lines
    rows = [["why, by operation, in ms", *CAUSES, "sum"]]
    for name, values in shown:
        cells = [_signed(value) if abs(value) >= 5e-7 else "." for value in values.tolist()]
        rows.append([name, *cells, _signed(float(values.sum()))])
    lines += ["", *aligned(rows)]
    if len(shown) < len(ranked):
        left = sum(float(values.sum()) for _, values in ranked[len(shown) :])
        lines.append(f"... and {len(ranked) - len(shown)} more, {_signed(left)} together")
    return lines


def _signed(seconds: float) -> str:
    """Milliseconds with their sign; nothing is +0.000 whatever its sign."""
    return f"{round(seconds * 1e3, 3) + 0.0:+.3f}"


def _operations(c: "Comparison", limit: int | None) -> list[str]:
    ranked = sorted(c.operations, key=lambda o: -abs(o.seconds.difference))
    shown = ranked if limit is None else ranked[:limit]
    if not shown:
        return [f"{len(ranked)} operations compared"]
    head = ["operation, in ms", "stream", "predicted", "measured", "difference", "error"]
    head += ["wait pred.", "wait meas.", "size pred.", "size meas."]
    lines = aligned([head, *map(_row, shown)], left=2)
    if len(shown) < len(ranked):
        lines.append(f"... and {len(ranked) - len(shown)} more with smaller differences")
    return lines


def _row(o: "Operation") -> list[str]:
    return [
        o.name + ("*" if o.below_clock else ""),
        o.stream,
        *_cells(o.seconds),
        f"{o.waited.predicted * 1e3:.3f}",
        f"{o.waited.measured * 1e3:.3f}",
        units.nbytes(o.nbytes.predicted),
        units.nbytes(o.nbytes.measured),
    ]


def _cells(pair: "Pair") -> list[str]:
    """Return predicted, measured, difference in ms, and the error in %."""
    error = "-" if pair.error is None else f"{round(pair.error, 3) + 0.0:+.1%}"
    numbers = (f"{value * 1e3:.3f}" for value in (pair.predicted, pair.measured))
    return [*numbers, _signed(pair.difference), error]


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def to_data(c: "Comparison") -> dict[str, Any]:
    """Return everything as plain data, with units in the keys."""
    return {
        "plan_hash": c.plan_hash,
        "ranks": c.ranks,
        "steps": {"predicted": c.steps[0], "measured": c.steps[1]},
        "iteration": _milliseconds(c.iteration),
        "prediction_interval": None if c.interval is None else c.interval.to_data(),
        "why": None if c.why is None else _why_data(c.why),
        "exposed_communication": _milliseconds(c.exposed),
        "hidden_communication": _milliseconds(c.hidden),
        "streams": {stream: _milliseconds(pair) for stream, pair in c.streams},
        "operations": [
            {
                "name": o.name,
                "stream": o.stream,
                **_milliseconds(o.seconds),
                "predicted_waited_ms": units.significant(o.waited.predicted * 1e3),
                "measured_waited_ms": units.significant(o.waited.measured * 1e3),
                "predicted_nbytes": units.significant(o.nbytes.predicted),
                "measured_nbytes": units.significant(o.nbytes.measured),
                "below_clock_uncertainty": o.below_clock,
            }
            for o in c.operations
        ],
        "only_predicted": list(c.only_predicted),
        "only_measured": list(c.only_measured),
        "clock_uncertainty_us": units.significant(c.clock_uncertainty * 1e6),
        "warnings": list(c.warnings),
    }


def _why_data(why: "Why") -> dict[str, Any]:
    def keyed(values: Iterable[float]) -> dict[str, float]:
        """Seconds by cause as ms under snake case names."""
        names = (cause.replace(" ", "_") + "_ms" for cause in CAUSES)
        return {k: units.significant(v * 1e3) for k, v in zip(names, values, strict=True)}

    return {
        "rank": why.rank,
        "along": why.along,
        **keyed(why.total.values()),
        "operations": [
            {"name": name, **keyed(values.tolist())}
            for name, values in zip(why.names, why.values, strict=True)
        ],
    }


def _milliseconds(pair: "Pair") -> dict[str, float | None]:
    return {
        "predicted_ms": units.significant(pair.predicted * 1e3),
        "measured_ms": units.significant(pair.measured * 1e3),
        "difference_ms": units.significant(pair.difference * 1e3),
        "ratio": None if pair.ratio is None else units.significant(pair.ratio),
        "error": None if pair.error is None else units.significant(pair.error),
    }
