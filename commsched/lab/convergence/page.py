"""The Markdown page of the convergence tables."""

from collections.abc import Mapping, Sequence
from statistics import median

from commsched.lab.convergence.repeated_training import left_at
from commsched.lab.convergence.table import (
    CaseResult,
    ConvergenceTable,
    against,
    differences,
)
from commsched.lab.convergence.targets import Target, targets
from commsched.lab.convergence.tuning import best
from commsched.text_table import in_markdown
from commsched.train.trials import mean
from commsched.units import nbytes

RATIO = "fft"  # name of the compute / exchange ratio at which all timed cases were timed
HEAD = (
    "case",
    "rate",
    "trainings",
    "held-out loss",
    "right",
    "against dense",
    "bytes a rank and step",
)
TIMES = ("ms a step", "steps to dense's loss", "s to dense's loss")
COSINES = (
    "Cosine of each layer's gradient, as its local loss gives it, with that of the whole net's"
    " loss: before the training, after the first period, and at the end:"
)


def markdown(tables: Mapping[str, ConvergenceTable]) -> str:
    """Write the promises of the papers with verdicts, then the cases of each table, by name."""
    lines = ["### What the papers promise", "", *_promises(tables)]
    for name, table in tables.items():
        title = f"### `{name}`: {table.net}, {table.ranks} ranks, {table.steps} steps"
        lines += ["", title, "", *_cases(table)]
        if any(case.cosines for case in table.cases):
            lines += ["", COSINES, "", *_cosines(table)]
    lines += ["", "### Time", "", *_times(tables)]
    if any(case.again for table in tables.values() for case in table.cases):
        lines += ["", "### Made again", "", *_made_again(tables)]
    return "\n".join(lines) + "\n"


def _promises(tables: Mapping[str, ConvergenceTable]) -> list[str]:
    rows = [
        (f"`{name}`", one.what, one.asked, one.found, _verdict(one, table))
        for name, table in tables.items()
        for one in targets(table)
    ]
    return in_markdown(("table", "promise", "bar", "found", "verdict"), rows)


def _verdict(target: Target, table: ConvergenceTable) -> str:
    """Return a verdict; a bar missed at rates that were not tuned refutes nothing."""
    if target.holds is None:
        return "undecided"
    if target.holds:
        return "held"
    compared = [table.case(name) for name in target.cases]
    whole = all(case is not None and case.tuned for case in compared)
    return "**refuted**" if whole else "missed, rates not tuned"


def _cases(table: ConvergenceTable) -> list[str]:
    """Return the lines of a table's cases; times only if the table has some."""
    timed = any(case.times for case in table.cases)
    rows = []
    for case in table.cases:
        row = [f"`{case.name}`", _rate(case), str(len(case.trained.trials))]
        row += [_loss(case), case.accuracy.in_points()]
        row += [_against(case, table), nbytes(case.sent_bytes)]
        if timed:
            row += _seconds(case, table)
        rows.append(row)
    return in_markdown((*HEAD, *TIMES) if timed else HEAD, rows)


def _cosines(table: ConvergenceTable) -> list[str]:
    """Return a line for each layer, a column for each case of local losses."""
    known = [case for case in table.cases if case.cosines]
    curves = {case.name: {each.layer: each.curve for each in case.cosines} for case in known}
    layers = [each.layer for each in known[0].cosines]
    rows = [
        (f"`{layer}`", *(_points_of(curves[case.name][layer]) for case in known))
        for layer in layers
    ]
    return in_markdown(("layer", *(f"`{case.name}`" for case in known)), rows)


def _times(tables: Mapping[str, ConvergenceTable]) -> list[str]:
    """Return a line for each table: trainings, trainings to choose rates, and hours of one core.

    Older records hold no seconds.
    """
    rows = []
    for name, table in tables.items():
        known = [seconds for case in table.cases if (seconds := seconds_of(case)) is not None]
        trained = sum(len(case.trained.trials) for case in table.cases)
        tried = sum(one.trainings for case in table.cases for one in case.tuned)
        unknown = len(table.cases) - len(known)
        rows.append((f"`{name}`", trained, tried, sum(known) / 3600, unknown))
    every = list(zip(*rows, strict=True))[1:]
    rows.append(("all", *(sum(column) for column in every)))
    head = ("table", "trainings", "and to choose rates", "hours of one core", "cases without hours")
    written = [(name, f"{a}", f"{b}", f"{hours:.2f}", f"{c}") for name, a, b, hours, c in rows]
    return in_markdown(head, written)


def seconds_of(case: CaseResult) -> float | None:
    """Return the core seconds of all trainings of a case; None if no training records seconds."""
    each = seconds_each(case)
    if each is None:
        return None
    tuned = (each * one.trainings if one.seconds is None else one.seconds for one in case.tuned)
    return each * len(case.trained.trials) + sum(tuned)


def seconds_each(case: CaseResult) -> float | None:
    """Return the mean seconds of a training; None if no training records seconds.

    If the first trainings record none, those of the repeated training count.
    """
    known = [each.seconds for each in case.trained.trials if each.seconds is not None]
    if not known and case.again is not None and case.again.seconds is not None:
        known = [case.again.seconds]
    return mean(known).value if known else None


def _made_again(tables: Mapping[str, ConvergenceTable]) -> list[str]:
    """Return a line for each table: the differences of repeated trainings from the first ones."""
    rows = []
    for name, table in tables.items():
        pairs = [(x.trained.trials[0], x.again) for x in table.cases if x.again is not None]
        if not pairs:
            continue
        equal = sum(left_at(old, new) is None for old, new in pairs)
        ends = [(old.end.loss, new.end.loss) for old, new in pairs]
        gaps = [abs(a - b) for a, b in ends if a is not None and b is not None]
        points = [abs(old.end.accuracy - new.end.accuracy) for old, new in pairs]
        rows.append(
            (
                f"`{name}`",
                f"{len(pairs)} of {len(table.cases)}",
                f"{equal}",
                f"{median(gaps):.2g}, {max(gaps):.2g}" if gaps else "",
                f"{100 * median(points):.2f}, {100 * max(points):.2f}",
            )
        )
    head = (
        "table",
        "cases made again",
        "every number equal",
        "losses apart, nats: median, most",
        "right apart, points: median, most",
    )
    return in_markdown(head, rows)


def _points_of(curve: Sequence[float]) -> str:
    return ", ".join(f"{curve[place]:.2f}" for place in (0, 1, -1))


def _rate(case: CaseResult) -> str:
    """Return the rate, in brackets if the rate was not tuned."""
    return f"{best(case.tuned):g}" if case.tuned else f"({case.trained.made.get('--rate')})"


def _loss(case: CaseResult) -> str:
    whole = len(case.losses) == len(case.trained.trials)
    return f"{mean(case.losses)}" if whole else "diverged"


def _against(case: CaseResult, table: ConvergenceTable) -> str:
    """Return the difference by pairs of trainings: nats of a text, points of accuracy."""
    dense = table.case("dense")
    if dense is None or case is dense:
        return ""
    if table.by_loss:
        found = differences(case, dense)
        if not found:
            return ""
        value, half = mean(found)
        return f"{value:+.3f}{'' if half is None else f' +- {half:.3f}'} nats"
    held = against(case, dense)
    return "" if held is None else held.accuracy.in_points("+")


def _seconds(case: CaseResult, table: ConvergenceTable) -> tuple[str, str, str]:
    """Return ms of a step, and steps and seconds to dense's loss, predicted and measured."""
    held, times = table.against_dense(case), table.times(case.name, RATIO)
    steps = None if held is None else held.steps
    reached = "not reached" if steps is None else str(steps)
    if times is None:
        return "", reached, ""
    both = times.predicted, times.measured
    step = " / ".join(f"{1e3 * x:.1f}" for x in both)
    return step, reached, "" if steps is None else " / ".join(f"{steps * x:.2f}" for x in both)
