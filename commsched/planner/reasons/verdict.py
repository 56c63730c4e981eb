"""Whether to compress: the best plans of several families of methods, compared in words."""

from collections.abc import Sequence
from typing import Any

from commsched.machine.trust import errors_of
from commsched.plan.model import Alternative, Plan
from commsched.text_table import table
from commsched.timeline.breakdown import RESOLUTION
from commsched.timeline.spread import Interval
from commsched.units import nbytes, seconds

NOTHING = 5e-4  # share of an iteration that is not worth a word: it rounds to 0.0 %
HEADER = ("plan", "iteration", "against dense", "exposed", "memory per rank", "compresses by")
RIGHT = {1, 2, 3, 4}


def label(family: str, allow: Sequence[str], planner: str = "") -> str:
    """Name the plan of a family."""
    if family == "planner":
        return f"planner {planner}"
    return f"best {family}" if family in ("dense", "lossless") else f"best with {', '.join(allow)}"


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row per plan that was compared."""
    dense = _row(plan, "dense")
    return [
        (
            label(one.family, one.allow, plan.planner),
            seconds(one.iteration),
            f"{0.0 - _saved(one, dense):+.1%}" if dense else "-",
            seconds(one.exposed) if one.exposed > RESOLUTION else "none",
            nbytes(one.memory),
            ", ".join(one.used) or "-",
        )
        for one in plan.alternatives
    ]


def lines(plan: Plan) -> list[str]:
    """Return the comparison as text; empty if there was none."""
    if not plan.alternatives:
        return []
    return [table(HEADER, rows(plan), RIGHT), conclusion(plan)]


def data(plan: Plan) -> dict[str, Any] | None:
    """Return the comparison as JSON data; None if there was none."""
    if not plan.alternatives:
        return None
    dense = _row(plan, "dense")
    return {
        "plans": [
            {
                "family": one.family,
                "allow": list(one.allow),
                "used": list(one.used),
                "iteration_median_seconds": one.iteration,
                "interval_p10_seconds": one.low,
                "interval_p90_seconds": one.high,
                "saved_share_of_dense": _saved(one, dense) if dense else None,
                "exposed_median_seconds": one.exposed,
                "memory_bytes_per_rank": one.memory,
            }
            for one in plan.alternatives
        ],
        "conclusion": conclusion(plan),
    }


def conclusion(plan: Plan) -> str:
    """Say in one sentence whether to compress; empty if no plans were compared."""
    if not plan.alternatives:
        return ""
    dense, lossless = _row(plan, "dense"), _row(plan, "lossless")
    allowed, half = _row(plan, "allowed"), _row(plan, "half")
    if dense is None or lossless is None:
        return "compress or not: too few plans were compared to tell"
    own = allowed or lossless
    asked = None if half is None or set(half.allow) <= set(own.allow) else half
    planner = _row(plan, "planner")
    found = [_by_planner(plan, planner, own)] if planner else []
    if allowed:
        found += _lossy(plan, dense, lossless, allowed, asked)
    else:
        found += _lossless(plan, dense, lossless, asked)
    return "; ".join([*found, _exposed(planner or own)])


def _by_planner(plan: Plan, planner: Alternative, own: Alternative) -> str:
    """Compare the plan of a planner that does not search with the best one."""
    start = f"planner {plan.planner} takes {seconds(planner.iteration)}"
    if _saved(own, planner) <= NOTHING:
        return f"{start}, and planner best no less"
    return f"{start}, planner best {seconds(own.iteration)}, {_saved(own, planner):.1%} less"


def _lossless(
    plan: Plan, dense: Alternative, lossless: Alternative, asked: Alternative | None
) -> list[str]:
    """Say what lossless methods gain, and what 16 bits would gain."""
    helps = _saved(lossless, dense) > NOTHING
    more = asked is not None and _saved(asked, lossless) > NOTHING
    if not (helps or more):
        which = (
            "no lossless codec" if asked is None else f"neither a lossless codec nor {_of(asked)}"
        )
        return [f"do not compress: {which} gains anything"]
    found = [_gain(plan, lossless, dense, "dense") if helps else "no lossless codec helps"]
    if asked is not None:
        found.append(_would(plan, asked, lossless) if more else f"{_of(asked)} would gain no more")
    return found


def _lossy(
    plan: Plan,
    dense: Alternative,
    lossless: Alternative,
    allowed: Alternative,
    asked: Alternative | None,
) -> list[str]:
    """Say what the allowed methods gain, and whether 16 bits would gain more."""
    if _saved(lossless, dense) <= NOTHING:
        found = [_gain(plan, allowed, dense, "dense")]
    else:
        found = [_gain(plan, lossless, dense, "dense")]
        if _saved(allowed, lossless) > NOTHING:
            found.append(_gain(plan, allowed, lossless, "lossless", "more"))
        else:
            found.append(f"{_of(allowed)} gains no more")
    if asked is not None and _saved(asked, allowed) > NOTHING:
        found.append(_would(plan, asked, allowed))
    return found


def _would(plan: Plan, asked: Alternative, own: Alternative) -> str:
    """Say what codecs that are not allowed would gain, and how to allow them."""
    words = _doubt(plan, asked, own) or f"{_both(asked, own)}, {_saved(asked, own):.1%} shorter"
    return f"{_by(asked)} would: {words} (--allow {','.join(asked.allow)})"


def _gain(plan: Plan, one: Alternative, other: Alternative, name: str, more: str = "") -> str:
    """Say what a plan gains over another one, and whether to compress."""
    doubt = _doubt(plan, one, other)
    if doubt:
        return f"{_by(one)} and {name}: {doubt}"
    saved = _saved(one, other)
    advice = "compress" if saved > NOTHING else "do not compress"
    share = f"{max(saved, 0.0):.1%}{more and ' '}{more}"
    return f"{_by(one)} gains {share} ({_both(one, other)}): {advice}"


def _doubt(plan: Plan, one: Alternative, other: Alternative) -> str:
    """Say that two plans cannot be told apart; empty if they can, or if they are equal."""
    count = len(errors_of(plan.machine, plan.net.occupies_cores))
    a, b = (Interval(low=row.low, high=row.high, residuals=count) for row in (one, other))
    if abs(_saved(one, other)) <= NOTHING or not a.overlaps(b):
        return ""
    return f"{_both(one, other)}, indistinguishable: p10 to p90, {a} and {b}, overlap; {a.basis}"


def _both(one: Alternative, other: Alternative) -> str:
    return f"{seconds(one.iteration)} against {seconds(other.iteration)}"


def _exposed(one: Alternative) -> str:
    """Say how much communication is exposed."""
    if one.exposed <= RESOLUTION:
        return "all communication is hidden"
    return f"{seconds(one.exposed)} of communication are exposed"


def _of(one: Alternative) -> str:
    """Name the lossy codecs and methods that a plan may use."""
    return ", ".join(one.allow)


def _by(one: Alternative) -> str:
    """Name the codecs by which a plan compresses: of its allowed lossy ones, those it uses."""
    return ", ".join([n for n in one.used if n in one.allow] or one.used or one.allow)


def _saved(one: Alternative, other: Alternative) -> float:
    """Return the share of another plan's iteration that a plan saves; 0 if that takes no time."""
    return 1.0 - one.iteration / other.iteration if other.iteration else 0.0


def _row(plan: Plan, family: str) -> Alternative | None:
    return next((one for one in plan.alternatives if one.family == family), None)
