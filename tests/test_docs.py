"""What documents and errors tell a user to type exists."""

import configparser
import importlib
import json
import re
import shlex
import sys
from importlib.util import find_spec
from itertools import groupby

import pytest

from commsched.cli.main import _parser as command_line
from commsched.cli.main import main
from commsched.cli.options import TRAINABLE
from commsched.errors import install
from commsched.train.registry import NETS
from tests.support.pages import PAGES, ROOT, blocks

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


def typed(text: str) -> list[list[str]]:
    """Each command line of commsched in the blocks of a page, without what starts its ranks."""
    found = []
    for block in blocks(text):
        if block.language == "console":
            lines = [command.replace("\\\n", " ") for command, *_ in block.commands()]
        else:
            lines = "\n".join(block.body).replace("\\\n", " ").splitlines()
        for line in lines if block.language in ("console", "sh") else []:
            if "<<" in line:
                continue
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
            words.whitespace_split = True
            for ends, part in groupby(words, lambda word: set(word) <= set("|&;>")):
                part = [] if ends else list(part)
                begun = [i for i, word in enumerate(part) if word.split("/")[-1] == "commsched"]
                stops = [*begun[1:], len(part)][: len(begun)]
                found += [part[i + 1 : stop] for i, stop in zip(begun, stops, strict=True)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documents_are_understood(page):
    for words in typed(page.read_text()):
        words = words[: words.index(":")] if ":" in words else words
        if "--plugin" in words:
            at = words.index("--plugin")
            words = words[:at] + words[at + 2 :]
        command_line(words).parse_args(words)


def test_the_page_of_variables_has_all_that_the_package_reads():
    code = "".join(file.read_text() for file in (ROOT / "commsched").rglob("*.py"))
    page = (ROOT / "docs/reference/environment.md").read_text()
    pattern = r"COMMSCHED_[A-Z]+"
    assert set(re.findall(pattern, code)) == set(re.findall(pattern, page))


def families() -> set[str]:
    return {name.partition(":")[0] for name in NETS}


def test_the_page_of_what_is_inside_has_the_names_of_each_registry(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs/reference/inside.md").read_text()
    rows = dict(re.findall(r"^\| ([\w ]+) \| (.*) \|$", page, re.MULTILINE))
    for title in ("nets", "machines", "strategies", "trained for real"):
        assert set(re.findall(r"`([^`]+)`", rows[title])) == {*listed.get(title, families())}, title


def test_the_help_names_all_nets_that_are_trained():
    assert set(re.findall(r"\w+", TRAINABLE.partition(", with")[0])) - {"or"} == families()
