"""Draws accuracy.png: predicted against measured, all cells of a recorded `commsched validate`.

The recorded table is traces/validation; `commsched validate` makes one of your machine.
"""

from pathlib import Path

from commsched.lab.validate import table
from commsched.plot.accuracy import draw

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Draw."""
    rows = table.read(HERE.parent / "traces" / "validation" / "table.json")
    draw(rows, HERE / "accuracy.png")


if __name__ == "__main__":
    main()
