"""What documents and errors tell a user to type exists."""

import configparser
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import install

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IMPORTS = re.compile(r"from (commsched[\w.]*) import ([\w, ]+)")


def test_every_import_in_the_documents_works():
    found = [match for page in PAGES for match in IMPORTS.findall(page.read_text())]
    assert found
    for module, names in found:
        if module.startswith("commsched.torch") and find_spec("torch") is None:
            continue
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), (module, name)


def test_errors_name_extras_that_can_be_installed_from_the_source():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    calls = 0
    for file in sorted((ROOT / "commsched").rglob("*.py")):
        text = file.read_text()
        assert "commsched[" not in text, f"{file}: commsched is on no package index"
        for extra in re.findall(r"install\([\"'](\w+)[\"']\)", text):
            assert extra in setup["options.extras_require"], file
            calls += 1
    assert calls >= 7
    assert install("mpi").startswith("pip install '.[mpi]' in the folder of")


def test_a_missing_package_is_named_with_an_installation_that_works(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    status = main(["run", str(tmp_path / "plan.json"), "-o", str(tmp_path / "m.json")])
    assert status == 2
    assert f"mpi4py is not installed; {install('mpi')}" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
