"""Draws what strategies and codecs learn: against bytes, rates and steps; writes its data.

convergence.png has accuracy or loss against bytes, convergence-rates.png the validation's loss for
each learning rate, convergence-curves.png the held-out loss over the steps.

docs/explanation/convergence.md has the tables between two marks. models/learning.json has what each
case costs in learning, for `plan --strategy auto`.

The tables are traces/convergence; `commsched bench convergence` makes them.
"""

from pathlib import Path

import msgspec

from commsched import files
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.curves import draw_curves, draw_rates
from commsched.lab.convergence.figure import draw
from commsched.lab.convergence.lessons import lessons_of
from commsched.lab.convergence.page import markdown
from commsched.lab.convergence.tables import TABLES

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- tables -->\n", "<!-- end of the tables -->\n"


def main() -> None:
    """Draw the tables that there are, and write what they say on learning."""
    folder = HERE.parent / "traces" / "convergence"
    paths = {name: folder / name / "table.json" for name in TABLES}
    tables = {name: convergence.read(path) for name, path in paths.items() if path.exists()}
    draw(tables, HERE / "convergence.png")
    draw_rates(tables, HERE / "convergence-rates.png")
    draw_curves(tables, HERE / "convergence-curves.png")
    page = HERE.parent / "docs" / "explanation" / "convergence.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{markdown(tables)}{END}{after}", encoding="utf-8")
    learning = msgspec.to_builtins(lessons_of(tables))
    files.write(HERE.parent / "models" / "learning.json", learning)


if __name__ == "__main__":
    main()
