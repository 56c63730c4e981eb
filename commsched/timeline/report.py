"""Comparisons of timelines as text and as data."""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any

from commsched import units
from commsched.text_table import table
from commsched.timeline.attribute import Why
from commsched.timeline.breakdown import CAUSES
from commsched.timeline.compare import Comparison, Operation, PredictedAndMeasured
from commsched.timeline.spread import Rival, Rivals, interval_data

KINDS = ("predicted", "measured")
SHORT = {"predicted": "pred.", "measured": "meas."}


def comparison_table(c: Comparison, limit: int | None = None) -> str:
    """Return the totals, then the `limit` operations with the largest differences."""
    totals = [
        ("iteration", c.iteration),
        ("exposed communication", c.exposed),
        ("hidden communication", c.hidden),
        *((f"busy: {stream}", pair) for stream, pair in c.streams),
    ]
    head = ("per step, in ms", *c.sides, "difference", "error")
    lines = [
        f"plan {c.plan_hash[:12]}, {units.count(c.ranks, 'rank')}",
        *(
            f"{side}: {t.statistic}; {units.nbytes(sent)} sent per rank and step"
            for side, t, sent in zip(
                c.sides, c.totals, (c.sent.predicted, c.sent.measured), strict=True
            )
        ),
        "",
        table(head, [[name, *_cells(pair)] for name, pair in totals], range(1, 5)),
        "",
        *_sureness(c),
        *_why(c, limit),
    ]
    if c.operations:
        lines += ["", *_operations(c, limit)]
    for what, names in zip(c.sides, (c.only_predicted, c.only_measured), strict=True):
        if names:
            lines += ["", f"only {what}: {_listed(names)}"]
    if c.within:
        where = ", ".join(f"{name} in {operations}" for name, operations in c.within)
        lines.append(f"the prediction has these seconds in other operations: {where}")
    if any(o.below_clock for o in c.operations):
        bound = units.seconds(c.clock_uncertainty)
        lines += ["", f"* shorter than the clocks' uncertainty of {bound}"]
    if c.warnings:
        lines += ["", *(f"warning: {sentence}" for sentence in c.warnings)]
    return "\n".join(lines)


def _sureness(c: Comparison) -> list[str]:
    """Describe the predicted range of iterations."""
    if c.interval is None:
        return []
    inside = c.interval.low <= c.iteration.measured <= c.interval.high
    hit = "holds" if inside else "does not hold"
    what = f"the {c.sides[1]} iteration"
    return [f"p10 to p90 of the prediction, {c.interval}, {hit} {what};", c.interval.basis, ""]


def _why(c: Comparison, limit: int | None) -> list[str]:
    """Return the parts of the iteration's error, then the operations that cause most of it."""
    if c.why is None:
        cause = "no rank has all compared steps on both sides"
        return [f"the error cannot be split: {'waiting is unknown' if c.doubt else cause}"]
    total = c.why.total
    scale = c.iteration.measured
    rows = [
        [name, _signed(value), _percent(value / scale) if scale else "-"]
        for name, value in (*total.items(), ("sum", sum(total.values())))
    ]
    lines = [
        table(("why, in ms", "difference", "of the iteration"), rows, (1, 2)),
        f"along the {c.sides[KINDS.index(c.why.along)]} chain of rank {c.why.rank}",
    ]
    ranked = sorted(zip(c.why.names, c.why.values, strict=True), key=lambda x: -abs(x[1]).sum())
    shown = ranked if limit is None else ranked[:limit]
    if not shown:
        return lines
    rows = []
    for name, values in shown:
        cells = [_signed(value) if abs(value) >= 5e-7 else "." for value in values.tolist()]
        rows.append([name, *cells, _signed(float(values.sum()))])
    head = ("why, by operation, in ms", *CAUSES, "sum")
    lines += ["", table(head, rows, range(1, len(head)))]
    if len(shown) < len(ranked):
        left = sum(float(values.sum()) for _, values in ranked[len(shown) :])
        lines.append(f"... and {len(ranked) - len(shown)} more, {_signed(left)} together")
    return lines


def _operations(c: Comparison, limit: int | None) -> list[str]:
    ranked = sorted(c.operations, key=lambda o: -abs(o.seconds.difference))
    shown = ranked if limit is None else ranked[:limit]
    if not shown:
        return [f"{len(ranked)} operations compared"]
    head = ["operation, in ms", "stream", *c.sides, "difference", "error"]
    short = [SHORT.get(side, side) for side in c.sides]
    head += [f"{what} {side}" for what in ("wait", "size") for side in short]
    lines = [table(head, [_row(o) for o in shown], range(2, len(head)))]
    if len(shown) < len(ranked):
        lines.append(f"... and {len(ranked) - len(shown)} more with smaller differences")
    return lines


def _row(o: Operation) -> list[str]:
    return [
        o.name + ("*" if o.below_clock else ""),
        o.stream,
        *_cells(o.seconds),
        _plain(o.waited.predicted),
        _plain(o.waited.measured),
        units.nbytes(o.nbytes.predicted),
        units.nbytes(o.nbytes.measured),
    ]


def _cells(pair: PredictedAndMeasured) -> list[str]:
    """Return both sides and their difference in ms, and the error in %."""
    error = "-" if pair.error is None else _percent(pair.error)
    return [_plain(pair.predicted), _plain(pair.measured), _signed(pair.difference), error]


def _plain(seconds: float) -> str:
    return "-" if isnan(seconds) else f"{seconds * 1e3:.3f}"


def _signed(seconds: float) -> str:
    """Format milliseconds with their sign; -0.0 becomes +0.000."""
    return f"{round(seconds * 1e3, 3) + 0.0:+.3f}"


def _percent(share: float) -> str:
    return f"{round(share, 3) + 0.0:+.1%}"


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def comparison_data(c: Comparison) -> dict[str, Any]:
    """Return everything as plain data, in s and B, with units in the keys; None is unknown."""
    sides = zip(KINDS, c.totals, strict=True)
    return {
        "plan_hash": c.plan_hash,
        "ranks": c.ranks,
        "steps": {
            side: {"steps": t.steps, "counted_steps": t.counted, "cycle_steps": t.cycle}
            for side, t in sides
        },
        "iteration_median": _pair_data(c.iteration, "seconds"),
        **interval_data(c.interval),
        "why": None if c.why is None else _why_data(c.why),
        "exposed_median": _pair_data(c.exposed, "seconds"),
        "hidden_median": _pair_data(c.hidden, "seconds"),
        "sent_median": _pair_data(c.sent, "bytes"),
        "streams": {stream: _pair_data(pair, "seconds") for stream, pair in c.streams},
        "operations": [
            {
                "name": o.name,
                "stream": o.stream,
                **_pair_data(o.seconds, "seconds"),
                "predicted_waited_seconds": _known(o.waited.predicted),
                "measured_waited_seconds": _known(o.waited.measured),
                "predicted_bytes": units.significant(o.nbytes.predicted),
                "measured_bytes": units.significant(o.nbytes.measured),
                "below_clock_uncertainty": o.below_clock,
            }
            for o in c.operations
        ],
        "only_predicted": list(c.only_predicted),
        "only_measured": list(c.only_measured),
        "within": dict(c.within),
        "clock_uncertainty_seconds": units.significant(c.clock_uncertainty),
        "warnings": list(c.warnings),
    }


def _known(value: float) -> float | None:
    return None if isnan(value) else units.significant(value)


def _why_data(why: Why) -> dict[str, Any]:
    def keyed(values: Iterable[float]) -> dict[str, float]:
        names = (cause.replace(" ", "_") + "_seconds" for cause in CAUSES)
        return {k: units.significant(v) for k, v in zip(names, values, strict=True)}

    return {
        "rank": why.rank,
        "along": why.along,
        **keyed(why.total.values()),
        "operations": [
            {"name": name, **keyed(values.tolist())}
            for name, values in zip(why.names, why.values, strict=True)
        ],
    }


def _pair_data(pair: PredictedAndMeasured, unit: str) -> dict[str, float | None]:
    return {
        f"predicted_{unit}": units.significant(pair.predicted),
        f"measured_{unit}": units.significant(pair.measured),
        f"difference_{unit}": units.significant(pair.difference),
        "ratio": None if pair.ratio is None else units.significant(pair.ratio),
        "error": None if pair.error is None else units.significant(pair.error),
    }


def rivals_table(r: Rivals) -> str:
    """Return a line per plan, and which plan is faster."""
    head = ("per step, in ms", "strategy", "batches", "iteration", "p10", "p90")
    counts = [plan.interval.residuals for plan in r.plans]
    basis = "intervals hold the spread of the steps only: the machine has no held-out errors"
    if any(counts):
        shown = " and ".join(map(str, counts))
        basis = f"intervals hold the spread of the steps and {shown} held-out errors of calibration"
    taken = " and ".join(dict.fromkeys(plan.statistic for plan in r.plans))
    rows = table((*head, "exposed communication"), [*map(_rival_row, r.plans)], range(2, 7))
    lines = [rows, f"iteration and exposed communication: {taken}", "", r.verdict, basis]
    return "\n".join([*lines, *(f"warning: {sentence}" for sentence in r.warnings)])


def _rival_row(plan: Rival) -> list[str]:
    seconds = (plan.iteration, plan.interval.low, plan.interval.high, plan.exposed)
    name = f"plan {plan.plan_hash[:12]}"
    return [name, plan.strategy, str(plan.batches), *map(_plain, seconds)]


def rivals_data(r: Rivals) -> dict[str, Any]:
    """Return everything as plain data, with units in the keys."""
    return {
        "plans": [
            {
                "plan_hash": plan.plan_hash,
                "strategy": plan.strategy,
                "batches": plan.batches,
                "iteration_median_seconds": units.significant(plan.iteration),
                **interval_data(plan.interval),
                "exposed_median_seconds": units.significant(plan.exposed),
            }
            for plan in r.plans
        ],
        "indistinguishable": r.indistinguishable,
        "verdict": r.verdict,
        "warnings": list(r.warnings),
    }
