"""Targets from the papers of the five systems, checked against the convergence tables."""

from collections.abc import Iterator
from typing import NamedTuple

from commsched.lab.convergence.table import ConvergenceTable, against, differences
from commsched.lab.convergence.tables import TABLES
from commsched.train.trials import Mean, mean

LOOKED_UP = {net.looked_up for net in TABLES.values()}  # tensors whose gradients are sparse
HALF, POINT = 0.005, 0.01  # half a point of accuracy, a point
ROUNDING = 1e-3  # nats; four ranks' sums are added in another order


class Target(NamedTuple):
    """One target, the measured value, whether the target holds, and the cases it compares.

    holds: None if the 95 % interval contains the bar, or if there is no interval.
    """

    what: str
    asked: str
    found: str
    holds: bool | None
    cases: tuple[str, ...] = ()  # empty: the target compares seconds, bytes or sums, not learning


def targets(table: ConvergenceTable) -> Iterator[Target]:
    """Yield the targets whose cases are in the table."""
    for each in (_fft, _daso, _samo, _zen, _local):
        yield from each(table)


def _fft(table: ConvergenceTable) -> Iterator[Target]:
    """Compare the accuracy of the FFT codec with top-k of equal bytes.

    The codecs are compared with error feedback, which the paper does not use, and without.
    """
    dense = table.case("dense")
    for end, what in (("", "error feedback"), (":forget", "as published")):
        spectrum, largest = table.case(f"fft:0.15{end}"), table.case(f"topk:0.03125{end}")
        if dense is None or spectrum is None or largest is None or table.by_loss:
            continue
        own, paired = against(spectrum, dense), against(spectrum, largest)
        if own is None or paired is None:
            continue
        both = (_at_least(own.accuracy, -HALF), _at_least(paired.accuracy, 0.0))
        yield Target(
            f"FFT, theta .85, {what}: accuracy against dense sums",
            "within 0.5 points, top-k of the same bytes worse or equal",
            f"{own.accuracy.in_points('+')} points, {paired.accuracy.in_points('+')} against top-k",
            _all(both),
            (dense.name, spectrum.name, largest.name),
        )


def _daso(table: ConvergenceTable) -> Iterator[Target]:
    """Compare the seconds to the final loss of dense sums."""
    dense = table.case("dense")
    for name in ("daso", "daso-short"):
        case = table.case(name)
        for times in case.times if case is not None else ():
            base = table.times("dense", times.ratio)
            if dense is None or case is None or base is None:
                continue
            own, other = against(case, dense), against(dense, dense)
            if own is None or other is None or other.steps is None:
                continue
            what = f"DASO ({name}), compute {times.value:.3g} of exchanges: time to dense's loss"
            if own.steps is None:
                yield Target(what, ">= 25 % less", "not reached", False, ("dense", name))
                continue
            mine, theirs = (
                (steps * each.predicted, steps * each.measured)
                for steps, each in ((own.steps, times), (other.steps, base))
            )
            saved, told = _saved(mine, theirs)
            yield Target(what, ">= 25 % less", _less(saved, told), saved >= 0.25, ("dense", name))


def _samo(table: ConvergenceTable) -> Iterator[Target]:
    """Compare accuracy, state memory and seconds of collectives for equal stages and replicas."""
    whole = table.case("samo-dense")
    for pruned in table.cases:
        if whole is None or table.by_loss or pruned.family != "samo" or pruned is whole:
            continue
        held = against(pruned, whole)
        if held is not None:
            yield Target(
                f"SAMO ({pruned.name}): accuracy against nothing pruned, equal epochs",
                "within 1 point",
                f"{held.accuracy.in_points('+')} points",
                _at_least(held.accuracy, -POINT),
                (whole.name, pruned.name),
            )
    own, other = (table.times(name, "samo") for name in ("samo", "samo-dense"))
    if own is None or other is None:
        return
    less = 1.0 - own.state_bytes / other.state_bytes
    what = "SAMO, p = .9: state memory, by the paper's formula"
    yield Target(what, "60-78 % less", f"{less:.1%} less", less >= 0.6)
    saved, told = _saved(own.moved(), other.moved())
    yield Target("SAMO: collective time", ">= 40 % less", _less(saved, told), saved >= 0.4)


def _zen(table: ConvergenceTable) -> Iterator[Target]:
    """Compare losses, and the seconds of the embedding's gradient."""
    case, dense = table.case("zen"), table.case("dense")
    if case is not None and dense is not None and (gaps := differences(case, dense)):
        worst = max(map(abs, gaps))
        yield Target(
            "Zen: held-out loss of each training against dense sums",
            f"equal but for rounding, {ROUNDING:g} nats",
            f"{worst:.2g} nats apart at most",
            worst <= ROUNDING,
        )
    for own in case.times if case is not None else ():
        other = table.times("dense", own.ratio)
        if other is None:
            continue
        density, rows = next(
            (x.density, t) for x in own.launches for t in x.tensors if t in LOOKED_UP
        )
        (told, found), (usual, there) = own.moved(rows), other.moved(rows)
        yield Target(
            f"Zen, d = {density:.1%}, compute {own.value:.3g} of exchanges: communication time of"
            " the embedding",
            "5 times less",
            f"{there / found:.1f} times less (predicted {usual / told:.1f})",
            there / found >= 5.0,
        )


def _local(table: ConvergenceTable) -> Iterator[Target]:
    """Compare step time and final loss with a pipeline that flushes."""
    case, flushed = table.case("local-chunked"), table.case("1f1b")
    own, other = table.times("local-chunked", "fft"), table.times("1f1b", "fft")
    if case is None or flushed is None or own is None or other is None:
        return
    saved, told = _saved((own.predicted, own.measured), (other.predicted, other.measured))
    gap = mean(differences(case, flushed))
    yield Target(
        "local, two chunks: time of a step, against 1f1b",
        "less, the loss's gap stated",
        f"{_less(saved, told)}; held-out loss {gap.value:+.3f} +- {gap.half or 0.0:.3f}",
        saved > 0.0,
    )


def _at_least(difference: Mean, bar: float) -> bool | None:
    """Tell whether a difference is at least the bar; None: the interval contains the bar."""
    if difference.half is None or abs(difference.value - bar) < difference.half:
        return None
    return difference.value >= bar


def _all(held: tuple[bool | None, ...]) -> bool | None:
    """Tell whether all targets hold; None: no target fails, but some are undecided."""
    return False if False in held else None if None in held else True


def _saved(own: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the measured and the predicted share of time saved."""
    told, found = (1.0 - mine / theirs for mine, theirs in zip(own, other, strict=True))
    return found, told


def _less(saved: float, told: float) -> str:
    return f"{saved:.1%} less (predicted {told:.1%})"
