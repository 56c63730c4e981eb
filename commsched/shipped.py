"""The folder of the shipped nets and machines, in a checkout or an installation."""

import sysconfig
from pathlib import Path

from commsched.errors import CommschedError
from commsched.nearest_name import nearest

KINDS = {"nets": "net", "machines": "machine", "devices": "device"}


def root() -> Path:
    """Return the folder of all shipped files."""
    checkout = Path(__file__).resolve().parent.parent / "models"
    installed = Path(sysconfig.get_path("data")) / "share" / "commsched" / "models"
    return checkout if checkout.is_dir() else installed


def folder(kind: str) -> Path:
    """Return the folder of the shipped files of a kind, `nets`, `machines` or `devices`."""
    assert kind in KINDS, kind
    return root() / kind


def names(kind: str) -> list[str]:
    """Return the names of the shipped files of a kind, sorted."""
    return sorted(path.stem for path in folder(kind).glob("*.json"))


def path_of(kind: str, name: str) -> Path:
    """Return the file of a shipped name, or of a path, which has a slash or ends in .json.

    `-` is the path of stdin.
    """
    if "/" in name or name.endswith(".json") or name == "-":
        return Path(name)
    known = names(kind)
    if name not in known:
        shown = ", ".join(known) or "none"
        raise CommschedError(
            f"no shipped {KINDS[kind]} named {name!r}; known: {shown}; a file of your own is given"
            f" by its path, which ends in .json{nearest(name, known)}"
        )
    return folder(kind) / f"{name}.json"
