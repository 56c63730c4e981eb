"""The outputs of the Python surface, in a notebook or a terminal: texts, pictures, studies."""

import html
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commsched.errors import CommschedError
from commsched.python_arguments import arguments_of, python_words
from commsched.study.run import table_of


class Shown:
    """A text of several lines, shown in a notebook as in a terminal."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Compared(Shown):
    """A comparison: a table, and its numbers as `data`."""

    def __init__(self, text: str, data: Any) -> None:
        self._text, self.data = text, data

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


class Picture:
    """A picture in a file; a notebook shows it."""

    def __init__(self, path: Path | None, svg: str) -> None:
        self.path, self._svg = path, svg

    def _repr_svg_(self) -> str | None:
        return self._svg or None

    def __repr__(self) -> str:
        return f"<Picture {self.path or 'for a notebook'}>"


class Study(Shown):
    """Rows of a sweep, with the columns of its table; missing numbers are None."""

    def __init__(self, rows: list[dict[str, Any]], path: Path | None) -> None:
        self.rows, self.path = rows, path

    def frame(self) -> Any:
        """Return the rows as a pandas.DataFrame."""
        try:
            import pandas
        except ImportError:
            raise CommschedError("a frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows)

    @python_words()
    def plot(self, path: str | Path | None = None, **wanted: Any) -> Picture:
        """Draw the rows, as `commsched plot` does; `wanted`: fields of plot.study.StudyPicture."""
        from commsched.plot.study import StudyPicture, draw  # loads matplotlib

        picture = StudyPicture(**arguments_of(StudyPicture, "a picture", wanted))
        return picture_of(path, lambda made: draw(self.rows, made, picture))

    def __str__(self) -> str:
        return "\n".join([repr(self), table_of(self.rows)])

    def __repr__(self) -> str:
        failed = sum(one["status"] != "ok" for one in self.rows)
        where = f" in {self.path}" if self.path else ""
        return f"<Study: {len(self.rows)} rows{where}, {failed} without a plan>"


def picture_of(path: str | Path | None, draw: Callable[[Path], None]) -> Picture:
    """Draw into a file, or for a notebook."""
    if path is not None:
        path = Path(path)
        draw(path)
        return Picture(path, path.read_text() if path.suffix.lower() == ".svg" else "")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "picture.svg"
        draw(made)
        return Picture(None, made.read_text())
