"""The directive `from-code`: parts of the reference that are made from the package itself."""

import argparse
import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import msgspec
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from commsched import records
from commsched.cli.commands.explain import _explain as explain
from commsched.cli.main import _parser as command_line
from commsched.cli.plug_ins import KINDS
from commsched.machine.model import Machine
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.timeline.file import TraceFile
from commsched.timeline.parts import PartHeader, PartRow
from commsched.training_log import HeldOutRow, LogHeader, LogRow


class FromCode(SphinxDirective):
    """Replace itself by the Markdown that a part of the package gives."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        part = self.arguments[0]
        text = "\n".join(PARTS[part]() if part in PARTS else _cards(part))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _commands() -> Iterator[str]:
    """The help of every command and of its parts."""
    for name, parser in _below(command_line([])):
        yield from (f"## {name}", "", *_fenced(parser.format_help(), "text"))


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each.prog, each
                yield from _below(each)


def _cards(kind: str) -> Iterator[str]:
    """What `commsched explain` says of each plug-in of a kind."""
    for name in KINDS[kind]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            explain(kind, name, None)
        text = said.getvalue().partition("\n")[2].replace("<", "&lt;")
        yield from (f"## {name}", "", text, "")


def _formats() -> Iterator[str]:
    """The JSON Schema of every kind of file, and a line for each of its keys."""
    for name, kind in FORMATS.items():
        schema = records.schema(kind) if is_dataclass(kind) else msgspec.json.schema(kind)
        yield from (f"## {name}", "", *_fenced(json.dumps(_plain(schema), indent=1), "json"))


def _plain(schema: Any) -> Any:
    """Leave out numbers that JSON cannot write, such as a default that is not a number."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if value == value}
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema


def _fenced(text: str, language: str) -> list[str]:
    return [f"```{language}", *text.rstrip().splitlines(), "```", ""]


def _literal(*found: Any) -> None:
    """Show what a docstring indents as code."""
    lines: list[str] = found[-1]
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].startswith("    ") and not lines[index - 1].startswith("    "):
            lines[index:index] = ["", "::", ""]


FORMATS: dict[str, Any] = {
    "Net": Net,
    "Machine": Machine,
    "Plan": Plan,
    "Timeline": TraceFile,
    "A rank's part of a timeline, first line": PartHeader,
    "A rank's part of a timeline, other lines": PartRow,
    "Training log, first line": LogHeader,
    "Training log, other lines": LogRow | HeldOutRow,
}
PARTS: dict[str, Callable[[], Iterator[str]]] = {"commands": _commands, "formats": _formats}


def setup(app: Sphinx) -> dict[str, Any]:
    """Declare the directive."""
    os.environ |= {"COLUMNS": "90", "NO_COLOR": "1"}  # of the help of commands
    app.add_directive("from-code", FromCode)
    app.connect("autodoc-process-docstring", _literal)
    return {"parallel_read_safe": True}
