"""Draws density.png: the time of sums of sparse gradients over their density, as measured.

It reads every table in traces/sparse/ of evenly spread gradients at 200 Mbit/s; traces/README.md
says which commands made them.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
RATES = 15e6, 30e6  # B/s of a port of 200 Mbit/s
COLOURS = {
    "node-union": "#d62728",
    "all-gather-direct+coo": "#1f77b4",
    "centralised": "#2ca02c",
    "omnireduce": "#9467bd",
    "zen": "#ff7f0e",
}
NAMES = {
    "node-union": "node-union (ours)",
    "all-gather-direct+coo": "AGsparse",
    "centralised": "SparCML, recursive doubling",
    "omnireduce": "OmniReduce",
    "zen": "Zen",
}


def cells() -> list[dict[str, Any]]:
    """All rows of the tables, by density."""
    found: list[dict[str, Any]] = []
    for path in sorted((HERE.parent / "traces" / "sparse").glob("*.json")):
        found += json.loads(path.read_text())
    chosen = [c for c in found if c["support"] == "uniform" and RATES[0] < c["rate"] < RATES[1]]
    return sorted(chosen, key=lambda c: c["density"])


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """One line per method with its spread, MPI_Allreduce as a band, the floor dotted; log-log."""
    figure, axes = plt.subplots(figsize=(7.2, 4.8), dpi=150)
    dense = sorted(c["mpi_seconds"] for c in rows)
    axes.axhspan(0.97 * dense[0], 1.03 * dense[-1], color="0.8", label="MPI_Allreduce, dense")
    for name, colour in COLOURS.items():
        own = [c for c in rows if c["method"] == name]
        if not own:
            continue
        x = [c["density"] for c in own]
        axes.plot(x, [c["seconds"] for c in own], "o-", ms=4, color=colour, label=NAMES[name])
        low, high = [c["least"] for c in own], [c["most"] for c in own]
        axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    floor = {c["density"]: c["floor_seconds"] for c in rows}
    axes.plot(list(floor), list(floor.values()), "k:", label="floor: fewest bytes over the rate")
    axes.set(xscale="log", yscale="log", xlabel="density of a rank's gradient", ylabel="time (s)")
    ticks = sorted(floor)
    axes.set_xticks(ticks, [f"{100 * d:g} %" for d in ticks])
    axes.minorticks_off()
    axes.set_title(
        f"{rows[0]['numel']:,} float32, 4 hosts x 2 ranks at 200 Mbit/s, list to list", fontsize=10
    )
    axes.grid(which="major", color="0.9")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    draw(cells(), HERE / "density.png")
