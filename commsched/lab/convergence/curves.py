"""Figures of the convergence tables: loss over the learning rate, held-out loss over the steps."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from commsched.lab.convergence.figure import title_of
from commsched.lab.convergence.table import CaseResult, ConvergenceTable
from commsched.lab.convergence.tuning import best
from commsched.plot.picture import picture
from commsched.train.trials import mean

# Families of the papers' promises; source of the colours: Okabe & Ito, 2008.
COLOURS = {
    "dense": "#000000",
    "spectrum": "#D55E00",
    "largest values": "#0072B2",
    "daso": "#009E73",
    "shadow": "#8A8A00",
    "sparse": "#7A3B00",
    "1 to 4 bits": "#E69F00",
    "low rank": "#777777",
    "pipeline": "#5B2C6F",
    "local": "#56B4E9",
    "samo": "#CC79A7",
    "coded messages": "#00503A",
}
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
ACROSS = 2  # panels in a row
SPAN, SPAN_OF_TEXT = 3.2, 1.2  # largest drawn loss, over the least in its panel
LEAST = 0.95  # end of the axis, over the least loss
IN_COLUMN = 20  # cases in a column of the legend
MANY = 200  # largest over least rate; beyond, labels at 2 and 5 would overlap


def draw_rates(tables: Mapping[str, ConvergenceTable], path: Path) -> None:
    """Draw the validation loss over the tried rates; a dot marks the chosen rate."""
    _panels(tables, path, _rates, "learning rate", "loss on validation data, nats")


def draw_curves(tables: Mapping[str, ConvergenceTable], path: Path) -> None:
    """Draw the mean held-out loss of the tuned cases over the steps."""
    _panels(tables, path, _curve, "steps", "held-out loss, nats")


Line = Callable[[Axes, CaseResult, str, Dash], float]  # returns the least loss


def _panels(
    tables: Mapping[str, ConvergenceTable], path: Path, line: Line, across: str, up: str
) -> None:
    """Draw one panel for each table with tuned cases; the legend is beside it."""
    shown = [(name, table, _tuned(table)) for name, table in tables.items()]
    shown = [each for each in shown if each[2]]
    columns, rows = min(len(shown), ACROSS), -(-len(shown) // ACROSS)
    with picture(path, (8.0 * columns, 4.0 * rows)) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes, (name, table, cases) in zip(panels, shown, strict=False):
            seen: dict[str, int] = {}
            leasts = []
            for case in cases:
                dash = DASHES[seen.setdefault(case.family, 0) % len(DASHES)]
                seen[case.family] += 1
                leasts.append(line(axes, case, COLOURS[case.family], dash))
            least, worst = min(leasts), max((x for x in leasts if np.isfinite(x)), default=np.inf)
            most = max(least * (SPAN_OF_TEXT if table.by_loss else SPAN), worst / LEAST)
            axes.set_ylim(LEAST * least, min(axes.get_ylim()[1], most))
            if axes.get_xscale() == "log":
                wide = np.divide(*reversed(axes.get_xlim())) > MANY
                axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(across)
            axes.set_ylabel(up)
            axes.set_title(title_of(name, table), fontsize=9)
            axes.grid(color="0.93", lw=0.6)
            beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False}
            axes.legend(
                ncols=-(-len(cases) // IN_COLUMN), fontsize=6.5, columnspacing=1.0, **beside
            )
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        figure.tight_layout()


def _tuned(table: ConvergenceTable) -> list[CaseResult]:
    """Return the tuned cases, family by family."""
    places = list(COLOURS)
    found = [case for case in table.cases if case.tuned and case.family in COLOURS]
    return sorted(found, key=lambda case: places.index(case.family))


def _rates(axes: Axes, case: CaseResult, colour: str, dash: Dash) -> float:
    rates = [one.rate for one in case.tuned]
    losses = [np.nan if one.loss is None else one.loss for one in case.tuned]
    axes.plot(rates, losses, color=colour, ls=dash, lw=1.1, label=case.name)
    axes.set_xscale("log")
    chosen = rates.index(best(case.tuned))
    axes.plot(rates[chosen], losses[chosen], "o", color=colour, ms=5)
    return float(np.nanmin(losses, initial=np.inf))


def _curve(axes: Axes, case: CaseResult, colour: str, dash: Dash) -> float:
    trials = case.trained.trials
    curves = [[np.nan if x.loss is None else x.loss for x in each.held_out] for each in trials]
    means = [mean(column).value for column in zip(*curves, strict=True)]
    steps = [x.steps for x in trials[0].held_out]
    axes.plot(steps, means, color=colour, ls=dash, lw=1.1, label=case.name)
    return float(np.nanmin(means, initial=np.inf))
