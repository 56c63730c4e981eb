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
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery", "from_code"]
root_doc = "docs/index"
include_patterns = [f"{folder}*.md" for folder in ("docs/**", "", "models/", "plots/", "traces/")]
include_patterns += ["docs/gallery/*.rst"]
exclude_patterns = ["build", ".*", "tests", "commsched", "**/node_modules"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!cs\.).*")]  # types of the library behind the surface
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
smartquotes = False
default_role = "literal"  # docstrings write `names` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
sphinx_gallery_conf = {
    "examples_dirs": "examples/figures",
    "gallery_dirs": "docs/gallery",  # written by every build
    "image_scrapers": ("pictures.pictures",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 3600,
}
html_static_path = ["style"]
html_css_files = ["site.css"]
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
