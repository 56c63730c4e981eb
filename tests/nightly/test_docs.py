"""What the documents show is what their commands print, and the site has no warning."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.nightly.docs import differences
from tests.support.pages import PAGES, ROOT, blocks

RUN = [
    page
    for page in PAGES
    if any(b.language in ("sh", "console") and not b.left_out for b in blocks(page.read_text()))
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_its_commands_print(page):
    if "torch" in page.read_text() and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    found = differences(page)
    assert not found, "\n".join(found)


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "index.html").exists()
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT)).with_suffix(".html").exists(), page
