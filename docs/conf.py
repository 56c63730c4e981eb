"""The site of commsched's pages: `python -m sphinx -W -c docs . build/site`, without network.

The source folder is the whole repository, so that pages link to files anywhere in it as on GitHub.
"""

import sys
from pathlib import Path

import commsched

sys.path.insert(0, str(Path(__file__).parent / "extension"))

project = "commsched"
author = "the commsched authors"
version = release = commsched.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "from_code"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "*.md", "models/*.md", "plots/*.md", "traces/*.md"]
exclude_patterns = ["build", ".*", "tests", "commsched", "**/node_modules"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!cs\.).*")]  # types of the library behind the surface
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
smartquotes = False
default_role = "literal"  # docstrings write `names` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
html_theme = "pydata_sphinx_theme"
html_title = "commsched"
html_extra_path = ["root"]  # leads to docs/index.html
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
