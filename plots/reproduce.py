"""Draws reproduce-NAME.png for each paper, published against ours; writes the papers' page in docs.

The recorded tables are in traces/reproduce; `commsched reproduce -o traces/reproduce` makes them.
"""

from pathlib import Path

from commsched.lab.reproduce.page import page
from commsched.lab.reproduce.paper import read
from commsched.plot.reproduction import draw

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Draw."""
    found = [read(path) for path in sorted((HERE.parent / "traces" / "reproduce").glob("*.json"))]
    for one in found:
        draw(one, HERE / f"reproduce-{one.name}.png")
    text = page(found, "../../plots/reproduce-{}.png")
    (HERE.parent / "docs" / "explanation" / "papers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
