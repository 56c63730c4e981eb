"""Show the reasons of a plan: the table of launches, notes, and the predicted iteration."""

from commsched.plan.model import Launch, Plan
from commsched.planner.reasons.margin import margin_interval
from commsched.planner.reasons.verdict import lines as verdict
from commsched.planner.search.encoding import elsewhere
from commsched.simulate import native
from commsched.simulate.step_count import STEPS
from commsched.units import nbytes, seconds

HEADER = (
    "launch",
    "tensors",
    "size",
    "after",
    "method",
    "ms",
    "runner-up",
    "ms",
    "margin ms",
    "p10 to p90",
    "otherwise",
)
RIGHT = {1, 5, 7, 8}


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row per launch: the method, the runner-up, and the margin between them."""
    return [_row(plan, launch) for launch in plan.launches]


def _row(plan: Plan, launch: Launch) -> tuple[str, ...]:
    why = launch.reason
    head = (
        launch.name,
        str(len(launch.pieces)),
        nbytes(4.0 * launch.numel),
        launch.after,
        method(launch) + _algorithm(plan, launch),
        f"{why.seconds * 1e3:.3f}" if why else "-",
    )
    if why is None or not why.runner_up:
        return (*head, "-", "-", "-", "-", "-")
    sure = margin_interval(plan, why)
    shown = "-" if sure is None else f"{sure[0] * 1e3:+.3f} to {sure[1] * 1e3:+.3f}"
    other = f"{why.opposite} {why.opposite_margin * 1e3:+.3f} ms" if why.opposite else "-"
    return (
        *head,
        why.runner_up,
        f"{why.runner_up_seconds * 1e3:.3f}",
        f"{why.margin * 1e3:+.3f}",
        shown,
        other,
    )


def _algorithm(plan: Plan, launch: Launch) -> str:
    """Return in brackets the algorithm that the machine's library uses for `native`."""
    name = native.algorithm(plan, launch)
    return f" ({name})" if name else ""


def method(launch: Launch) -> str:
    """Return the method, with its ranks and its period unless all ranks exchange every step."""
    text = launch.method
    if launch.among != "all":
        text += f" among {'ranks of a node' if launch.among == 'node' else launch.among}"
    if launch.purpose:
        text += f", {launch.purpose}"
    if launch.every != 1:
        text += f", every {launch.every} steps"
    text += f", from step {launch.since} on" if launch.since else ""
    return text + (f", merged {launch.lag} later" if launch.lag else "")


def notes(plan: Plan) -> list[str]:
    """Explain the columns of the table, and say whether to compress."""
    if not plan.launches:
        return []
    found = [
        "margin: how much longer the iteration takes with the runner-up; otherwise: the best method"
        " that compresses where the chosen one does not, or the other way"
    ]
    if not plan.machine.held_out:
        found.append("no intervals: the machine file has no held-out errors of a calibration")
    if any(launch.reason and launch.reason.margin < 0 for launch in plan.launches):
        found.append(
            "a margin below 0: the runner-up is predicted to be faster, but less surely: its"
            " exchanges are of those that the calibration predicted worse"
        )
    return [*found, *filter(None, [_place(plan)]), *verdict(plan)]


def _place(plan: Plan) -> str:
    """Tell which threads code buckets, and how much longer the best alternative takes."""
    found = elsewhere(plan)
    if found is None:
        return ""
    words = {
        "apart": "encoded and decoded on threads of their own",
        "communication": "encoded on the communication thread",
        "together": "encoded and decoded on the communication thread if they are small",
    }
    here, there, more = found
    return f"buckets are {words[here]}; {words[there]}: {more * 1e3:+.3f} ms"


def quality(plan: Plan) -> str:
    """Return the predicted iteration time and its distance to the bound."""
    if not plan.iteration:
        return ""
    text = f"iteration {seconds(plan.iteration)}"
    if not plan.machine.alike:
        text += f" (median of {STEPS - 1} steps{' with jitter' * (not plan.machine.even)})"
    if not plan.bound:
        return text
    gap = max(plan.iteration / plan.bound - 1.0, 0.0)
    return f"{text}, within {gap:.1%} of the bound"


def compared(a: Plan, b: Plan) -> str:
    """Compare the predicted iterations of two plans."""
    if not (a.iteration and b.iteration):
        return ""
    more = b.iteration - a.iteration
    return (
        f"iteration {seconds(a.iteration)} here, {seconds(b.iteration)} there"
        f" ({more * 1e3:+.4g} ms, {more / a.iteration:+.1%})"
    )
