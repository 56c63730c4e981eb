"""models/learning.json is what the convergence tables say."""

from pathlib import Path

from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.lessons import lessons_of
from commsched.lab.convergence.tables import TABLES
from commsched.planner.auto.learning import lessons

RECORDED = Path(__file__).resolve().parents[2] / "traces" / "convergence"


def test_shipped_lessons_are_those_of_the_tables() -> None:
    paths = {name: RECORDED / name / "table.json" for name in TABLES}
    tables = {name: convergence.read(path) for name, path in paths.items() if path.exists()}
    assert lessons_of(tables).lessons == lessons()
