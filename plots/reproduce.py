"""Draws reproduce-NAME.png for each paper: its published numbers against the library's.

The recorded tables are in traces/reproduce; `commsched reproduce -o traces/reproduce` makes them.
"""

from pathlib import Path

from commsched.lab.reproduce.paper import read
from commsched.plot.reproduction import draw

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Draw."""
    for path in sorted((HERE.parent / "traces" / "reproduce").glob("*.json")):
        draw(read(path), HERE / f"reproduce-{path.stem}.png")


if __name__ == "__main__":
    main()
