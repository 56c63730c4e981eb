"""What sphinx-gallery shows of a script: the pictures of commsched that a block of it has made."""

from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

from commsched.notebook import Picture


def pictures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Write each new picture beside the page, and return the text that shows it."""
    seen: set[int] = variables.setdefault("shown", set())
    paths = []
    for made in variables["example_globals"].values():
        if isinstance(made, Picture) and id(made) not in seen:
            seen.add(id(made))
            path = Path(next(variables["image_path_iterator"])).with_suffix(".svg")
            path.write_text(made._repr_svg_() or "")
            paths.append(str(path))
    return figure_rst(paths, settings["src_dir"])
