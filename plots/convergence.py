"""Draws convergence.png, what strategies and codecs learn against what they send; writes its data.

models/learning.json has what each case costs in learning, for `plan --strategy auto`.

The tables are traces/convergence; `commsched bench convergence` makes them.
"""

from pathlib import Path

import msgspec

from commsched import files
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.figure import draw
from commsched.lab.convergence.lessons import lessons_of

HERE = Path(__file__).resolve().parent
TABLES = ("digits", "deep", "messages", "text")


def main() -> None:
    """Draw the tables that there are, and write what they say on learning."""
    folder = HERE.parent / "traces" / "convergence"
    paths = {name: folder / name / "table.json" for name in TABLES}
    tables = {name: convergence.read(path) for name, path in paths.items() if path.exists()}
    draw([*tables.values()], HERE / "convergence.png")
    learning = msgspec.to_builtins(lessons_of(tables))
    files.write(HERE.parent / "models" / "learning.json", learning)


if __name__ == "__main__":
    main()
