"""The file of a study: what is read of it, and what is refused."""

import pytest

import commsched as cs
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.study import rows
from commsched.study.pricing import COLUMNS

WORDS = ["sweep", "--net", "lstm", "--machine", "p3.16xlarge", "--nodes", "2"]
WORDS += ["--planner", "ddp-25mb,per-tensor", "-o"]


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


@pytest.mark.parametrize(
    ("column", "cell"),
    [("step_seconds", "nan"), ("scale", "inf"), ("memory_bytes_per_rank", "-Infinity"),
     ("step_seconds", "1e999"), ("ranks", "9" * 400), ("ranks", "1.5")],
)  # fmt: skip
def test_a_number_of_a_table_is_finite(column, cell, table):
    lines = table.read_text().splitlines()
    cells = [cell if name == column else "" for name in COLUMNS]
    table.write_text("\n".join([lines[0], ",".join(cells), ""]))
    with pytest.raises(CommschedError, match=f"line 2: {column} must be a (finite|whole) number"):
        rows.read(table)


def test_a_parquet_table_has_the_rows_of_the_csv_and_is_drawn(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    path, picture = tmp_path / "sweep.parquet", tmp_path / "sweep.svg"
    assert main([*WORDS, str(path)]) == 0
    found = rows.read(path)
    assert found == rows.read(path.with_suffix(".csv"))
    again = cs.sweep("lstm", "p3.16xlarge", path=path, nodes=2, planners="ddp-25mb")
    assert again.rows == [one for one in found if one["planner"] == "ddp-25mb"]
    assert rows.read(path) == found
    assert main(["plot", str(path), "-o", str(picture)]) == 0
    assert picture.exists()
    path.write_bytes(b"PAR1")
    assert main(["plot", str(path), "-o", str(picture)]) == 2
    assert "not a Parquet file" in capsys.readouterr().err
