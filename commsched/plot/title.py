"""The title of a picture of a timeline: the drawn plan and steps, and their durations."""

from collections.abc import Callable, Sequence

import numpy as np

from commsched.plot.view import View, drawn_ranks, same_plan
from commsched.timeline.compare import PredictedAndMeasured
from commsched.timeline.cycles import totals
from commsched.timeline.model import Timeline


def title_of(
    sides: Sequence[Timeline],
    views: Sequence[View],
    names: Sequence[str],
    chosen: Sequence[dict[int, str]],
) -> str:
    """Describe the picture: plan, iteration, and the difference of the sides."""
    nets, machines = (
        [word for word in dict.fromkeys(values) if word is not None and word.isprintable()]
        for values in ([t.header.net for t in sides], [t.header.machine for t in sides])
    )
    on = " on ".join(" and ".join(words) for words in (nets, machines) if words)
    ranks = list(dict.fromkeys(map(drawn_ranks, sides, chosen)))
    if same_plan(sides):
        ranks = ranks[-1:]
    plan = f"plan {sides[-1].plan_hash[:12]}" if same_plan(sides) else ""
    head = ", ".join(s for s in (on, " and ".join(ranks), plan, _drawn(views, names)) if s)
    found = [totals(side) for side in sides]
    if not all(side.counted for side in found):
        return head
    iterations = [float(np.median(f.iteration)) for f in found]
    said = ", ".join(f"{s * 1e3:.2f} ms {name}" for s, name in zip(iterations, names, strict=True))
    if len(sides) == 2:
        said += _apart(iterations, sides)
    bare = " and ".join(f"{np.median(f.exposed) * 1e3:.2f}" for f in found)
    taken = " and ".join(dict.fromkeys(side.statistic for side in found))
    return f"{head}\niteration {said}; exposed communication {bare} ms ({taken})"


def _drawn(views: Sequence[View], names: Sequence[str]) -> str:
    """Name the drawn steps and the duration of each one."""
    found: dict[int, list[str]] = {}
    for v, name in zip(views, names, strict=True):
        lasted = f"{v.iteration * 1e3:.2f} ms " if np.isfinite(v.iteration) else ""
        found.setdefault(v.step, []).append(lasted + name)
    each = " and ".join(f"{step} ({', '.join(said)})" for step, said in found.items())
    return f"step{'s' * (len(found) > 1)} {each}"


def _apart(iterations: Sequence[float], sides: Sequence[Timeline]) -> str:
    """Compare the iterations: the error of a prediction, or the change from one plan to another."""
    first, second = iterations
    if same_plan(sides):
        error = PredictedAndMeasured(first, second).error
        return "" if error is None else f", error {error:+.1%}"
    return f" ({second / first - 1:+.1%})" if first else ""


def wrapped(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Break lines between words so that each fits; no line at all for no text."""
    lines: list[str] = []
    for paragraph in filter(None, text.split("\n")):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and not fits(longer):
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines
