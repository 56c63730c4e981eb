"""The picture of a schedule's rounds, with every block that a rank sends, as PNG, SVG or PDF."""

from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from commsched.plot.colours import BACKWARD, EXPOSED
from commsched.plot.picture import picture
from commsched.schedule.rounds import Schedule
from commsched.schedule.text import blocks_text

ADDED, REPLACED = BACKWARD.fill, EXPOSED
ROUND, RANK = 1.3, 0.55  # in
WIDEST = 40.0  # in
ARROW = 0.26  # start of arrows in a round, after the names of their blocks
SMALL: Any = {"va": "center", "size": 8}


def draw(schedule: Schedule, path: Path) -> None:
    """Draw rounds from left to right, ranks from top to bottom, and blocks' names before arrows."""
    rounds = list(schedule.rounds())
    size = (min(WIDEST, 1.4 + ROUND * len(rounds)), 1.5 + RANK * schedule.ranks)
    with picture(path, size) as figure:
        axes = figure.subplots()
        for column, moves in enumerate(rounds):
            colour, style = (ADDED, "-") if moves.add else (REPLACED, "--")
            for src, dst, first, stop in zip(*moves[:4], strict=True):
                start, end = (column + ARROW, src), (column + 0.94, dst)
                arrow = {"arrowstyle": "-|>", "color": colour, "ls": style, "lw": 1.0}
                arrow |= {"shrinkA": 0, "shrinkB": 0}
                axes.annotate("", end, start, arrowprops=arrow)
                name = blocks_text(int(first), int(stop))
                axes.text(column + ARROW - 0.02, src, name, color=colour, ha="right", **SMALL)
        axes.set_xlim(0, max(1, len(rounds)))
        axes.set_ylim(schedule.ranks - 0.5, -0.5)
        axes.set_yticks(range(schedule.ranks), [f"rank {rank}" for rank in range(schedule.ranks)])
        middles = [column + 0.5 for column in range(len(rounds))]
        axes.set_xticks(middles, [str(number) for number in range(1, len(rounds) + 1)])
        axes.set_xlabel("round")
        axes.tick_params(length=0)
        for column in range(len(rounds) + 1):
            axes.axvline(column, color="0.85", lw=0.8, zorder=0)
        for side in axes.spines.values():
            side.set_visible(False)
        blocks = f"{schedule.blocks} block{'s' * (schedule.blocks != 1)}"
        axes.set_title(f"{schedule.name}: {schedule.goal} of {blocks}", size=10, loc="left")
        lines = {"the receiver adds": (ADDED, "-"), "the receiver replaces": (REPLACED, "--")}
        handles = [Line2D([], [], color=c, ls=s, label=text) for text, (c, s) in lines.items()]
        figure.legend(handles=handles, loc="lower left", ncols=2, frameon=False, fontsize=8)
        figure.tight_layout(rect=(0, 0.22 / size[1], 1, 1))
