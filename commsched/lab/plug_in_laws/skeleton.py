"""Skeletons of plug-ins: small ones that obey all laws, with their tests."""

import ast
import keyword
import re
from importlib.resources import files as resources
from typing import Any

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.registry import Registry
from commsched.schedule.registry import COLLECTIVES

KINDS: dict[str, Registry[Any]] = {"collective": COLLECTIVES, "codec": CODECS}
WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def identifier(name: str) -> str:
    """Return the name of the plug-in's module."""
    return name.replace("-", "_")


def texts(kind: str, name: str) -> tuple[str, str]:
    """Return the text of a plug-in of a kind, and that of its test."""
    if not WORD.fullmatch(name) or keyword.iskeyword(name):
        raise CommschedError(
            f"{kind} {name!r}: a name has small letters, digits and hyphens, such as torus-2d, and"
            " is no keyword of Python"
        )
    if name in KINDS[kind]:
        raise CommschedError(f"there is a {kind} {name!r} already; choose another name")
    module, title = identifier(name), "".join(word.capitalize() for word in name.split("-"))
    folder = resources("commsched.lab.plug_in_laws") / "skeletons"
    found = []
    for start in ("", "test_"):
        text = (folder / f"{start}{kind}.py.txt").read_text()
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for word in used & {module, title}:
            raise CommschedError(
                f"{kind} {name!r}: its file would use the name {word!r} for something else, too;"
                " choose another name"
            )
        text = text.replace("the-name", name).replace("the_name", module)
        found.append(text.replace("TheName", title))
    return found[0], found[1]
