"""The file of a study: what is read of it, and what is refused."""

import pytest

from commsched.cli.main import main
from commsched.study import rows

WORDS = "sweep --net lstm --machine p3.16xlarge --nodes 2 --planner ddp-25mb,per-tensor -o".split()


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "sweep.csv"
    assert main([*WORDS, str(path)]) == 0
    return path


def test_a_last_line_without_its_end_counts_if_all_its_cells_are_there(table):
    text = table.read_text()
    whole = rows.read(table)
    table.write_text(text[:-1])  # as some editors save it
    assert rows.read(table) == whole
    table.write_text(text[: text.rindex("native")].rstrip(","))  # torn
    assert rows.read(table) == whole[:1]
    table.write_text(text[:-1])  # a study that goes on makes it again
    assert main([*WORDS, str(table)]) == 0
    assert table.read_text() == text
