"""Losses in learning of each case of the convergence tables, for `plan --strategy auto`."""

from collections.abc import Iterator, Mapping

from commsched.lab.convergence.cases import Case, cases, plan_of
from commsched.lab.convergence.table import CaseResult, ConvergenceTable, against, differences
from commsched.lab.convergence.tables import TABLES
from commsched.planner.auto.learning import Lesson, Lessons, decisive, lossy_codecs
from commsched.program.registry import STRATEGIES
from commsched.train.trials import Mean, mean

HOSTS = 2  # of the recorded trainings
SOURCE = "traces/convergence, written by `python plots/convergence.py`"
DIGITS = 3  # significant digits of a written number
NOISE = 12  # decimals of a point or per cent; smaller values are rounding errors
POINTS, SHARE = "points of accuracy", "% of the loss"


def lessons_of(tables: Mapping[str, ConvergenceTable]) -> Lessons:
    """Return the lessons of some tables, by name.

    Cases with a schedule of codecs and cases of a single training have no lesson.
    """
    return Lessons(
        source=SOURCE,
        lessons=tuple(
            lesson for name, table in tables.items() for lesson in _of_table(name, table)
        ),
    )


def _of_table(name: str, table: ConvergenceTable) -> Iterator[Lesson]:
    known = {case.name: case for case in cases(name)}
    for result in table.cases:
        case = known.get(result.name)
        if case is None or case.then or case.refresh or _is_reference(case):
            continue
        adam = case.optimizer == "adam" != known["dense"].optimizer
        reference = table.case("adam" if adam else "dense")
        lost = None if reference is None else _lost(table, result, reference)
        if lost is None or len(result.trained.trials) < 2:
            continue
        plan = plan_of(case, TABLES[name], HOSTS, TABLES[name].lanes)
        yield Lesson(
            net=table.net,
            case=case.name,
            strategy=case.strategy,
            params=decisive(case.strategy, STRATEGIES[case.strategy].settings(plan)),
            codecs=lossy_codecs(plan),
            unit=SHARE if table.by_loss else POINTS,
            lost=_rounded(lost.value),
            half=_rounded(lost.half or 0.0),
            trainings=len(result.trained.trials),
        )


def _is_reference(case: Case) -> bool:
    """Tell whether a case uses dense sums, with any optimiser."""
    return case.strategy == "sync" and case.method == "ring+dense" and not case.force


def _lost(table: ConvergenceTable, result: CaseResult, reference: CaseResult) -> Mean | None:
    """Return the loss in learning of a case: points of accuracy, or per cent of a text's loss."""
    if not table.by_loss:
        compared = against(result, reference)
        if compared is None:
            return None
        value, half = compared.accuracy
        return Mean(-100 * value, 100 * (half or 0.0))
    found = differences(result, reference)
    if not found or not reference.losses:
        return None
    base = mean(reference.losses).value
    value, half = mean(found)
    return Mean(100 * value / base, 100 * (half or 0.0) / base)


def _rounded(value: float) -> float:
    return float(f"{round(value, NOISE):.{DIGITS}g}") + 0.0  # no -0
