"""models/learning.json is what the convergence tables say."""

from pathlib import Path

from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.lessons import lessons_of
from commsched.planner.auto.learning import lessons

TABLES = Path(__file__).resolve().parents[2] / "traces" / "convergence"


def test_shipped_lessons_are_those_of_the_tables() -> None:
    tables = {
        name: convergence.read(TABLES / name / "table.json") for name in ("digits", "deep", "text")
    }
    assert lessons_of(tables).lessons == lessons()
