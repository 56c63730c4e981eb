"""The interface of an import format: it recognises a file's content and makes a net of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from commsched.errors import CommschedError
from commsched.interchange.content import Content
from commsched.net.graph import Net
from commsched.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's statements about a file."""

    name: str
    batch: int | None = None  # samples per rank; None: as the file says
    sizes: Mapping[str, int] = field(default_factory=dict)  # axis named in the file -> size


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A net, and facts of the file that a net cannot hold."""

    net: Net
    notes: tuple[str, ...] = ()  # sentences
    data: Mapping[str, Any] = field(default_factory=dict)  # the facts of `notes` as numbers


@dataclass(frozen=True, slots=True)
class Format:
    """A file format that nets are made from."""

    title: str
    recognises: Callable[[Content], bool]
    read: Callable[[Content, Options], Imported]
    axes: bool = True  # a file may name axes without a size


FORMATS: Registry[Format] = Registry("format", "commsched.interchange.formats")


def import_file(content: Content, options: Options, format: str = "") -> Imported:
    """Make a net of a file; if the user names no format, the content tells it."""
    named = format or next((name for name in FORMATS if FORMATS[name].recognises(content)), "")
    if not named:
        titles = "; ".join(f"{name}: {FORMATS[name].title}" for name in FORMATS)
        raise CommschedError(f"{content.where}: not a file of a known format ({titles})")
    found = FORMATS[named]
    if options.sizes and not found.axes:
        raise CommschedError(
            f"{content.where}: --size is for axes without a size, and {found.title} has none; leave"
            " the option out"
        )
    return found.read(content, options)
