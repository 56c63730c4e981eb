"""Draws demo.png: a step of resnet50 on four ranks, predicted over measured.

The recorded run is traces/demo; `commsched demo` makes one of your machine.
"""

from pathlib import Path

from commsched.plot.timeline import draw
from commsched.timeline import file as timeline_file

HERE = Path(__file__).resolve().parent
TRACES = HERE.parent / "traces" / "demo"


def main() -> None:
    """Draw."""
    sides = [timeline_file.read(TRACES / f"{kind}.json") for kind in ("predicted", "measured")]
    draw(sides, HERE / "demo.png")


if __name__ == "__main__":
    main()
