"""Draws convergence.png: what strategies and codecs learn against what they send.

The tables are traces/convergence; `commsched bench convergence` makes them.
"""

from pathlib import Path

from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.figure import draw

HERE = Path(__file__).resolve().parent
TABLES = ("digits", "deep", "text")


def main() -> None:
    """Draw the tables that there are."""
    folder = HERE.parent / "traces" / "convergence"
    paths = [folder / name / "table.json" for name in TABLES]
    draw([convergence.read(path) for path in paths if path.exists()], HERE / "convergence.png")


if __name__ == "__main__":
    main()
