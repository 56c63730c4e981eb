"""Picture files: PNG, SVG or PDF; equal content gives equal bytes."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from commsched import files
from commsched.errors import CommschedError
from commsched.terminal import printable

TOO_SMALL = "constrained_layout not applied"  # beginning of matplotlib's warning
SUFFIXES = (".png", ".svg", ".pdf")
NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays searchable
    "svg.hashsalt": "commsched",  # identifiers do not change from file to file
    "pdf.fonttype": 42,  # TrueType, which publishers accept
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


def check_suffix(path: str | Path, allowed: str = ".png, .svg or .pdf") -> str:
    """Return the suffix of a picture file in lower case; reject others than `SUFFIXES`."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise CommschedError(f"{path}: cannot draw {suffix!r} files; use {allowed}")
    return suffix


@contextmanager
def picture(
    path: str | Path, size: tuple[float, float], dpi: int = 150, settings: Any = None
) -> Iterator[Figure]:
    """Yield an empty figure of `size` inches; write it to `path` at the end of the block.

    `settings` are further rcParams of matplotlib.
    """
    suffix = check_suffix(path)
    content = io.BytesIO()
    with mpl.rc_context({**SETTINGS, **(settings or {})}):
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        with _with_room(size):
            yield figure
            for text in figure.findobj(Text):
                if not text.get_text().isprintable():
                    text.set_text(printable(text.get_text(), lines=True))  # XML allows no others
            figure.savefig(content, format=suffix[1:], dpi=dpi, metadata=NO_DATE.get(suffix, {}))
    files.write_bytes(path, content.getvalue())


@contextmanager
def boxes() -> Iterator[None]:
    """Draw boxes for letters that the font lacks, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


@contextmanager
def _with_room(size: tuple[float, float]) -> Iterator[None]:
    """Raise an error if the texts of a picture leave no room."""
    with boxes():
        warnings.filterwarnings("error", TOO_SMALL)
        try:
            yield
        except UserWarning as warning:
            if not str(warning).startswith(TOO_SMALL):
                raise
            width, height = size
            raise CommschedError(
                f"the texts leave no room in {width:.3g} x {height:.3g} in; give more --width or"
                " --height, or a smaller --font-size"
            ) from None
