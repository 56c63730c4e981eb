"""Draws accuracy.png, the errors of a recorded `commsched validate`; writes its table in docs.

The recorded table is traces/validation/table.jsonl, of `commsched validate`, whole or --quick.
"""

from pathlib import Path

from commsched.lab.validate import report, table

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
PICTURE = "![Signed errors of predicted iterations](../../plots/accuracy.png)"


def main() -> None:
    """Draw and write."""
    rows = table.read(HERE.parent / "traces" / "validation" / "table.jsonl")
    report.draw_figure(report.measured(rows), HERE / "accuracy.png")
    page = HERE.parent / "docs" / "explanation" / "accuracy.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}{PICTURE}\n\n{report.markdown(rows)}{END}{after}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
