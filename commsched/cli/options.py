"""Tables of commands and options, and the argparse parsers made of them."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

from commsched.errors import CommschedError
from commsched.files import check_writable
from commsched.quantities import SECONDS
from commsched.quantity import NUMBER, Quantity

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = TypeVar("Run", bound=Callable[[argparse.Namespace], int | None])
COMMANDS: dict[str, Callable[[Commands], object]] = {}  # name -> function that declares it


@dataclass(frozen=True, slots=True)
class Flag:
    """An option without a value."""

    names: str
    help: str
    default: ClassVar[bool] = False

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the flag to a parser or to a group of its options."""
        parser.add_argument(self.names, action="store_true", help=self.help)


@dataclass(frozen=True, slots=True)
class Option:
    """An option with a value or, if the name has no dashes, a positional argument."""

    names: str  # separated by blanks, such as "-o --output"
    metavar: str | None
    help: str
    type: Callable[[str], object] = str
    default: object = None  # in the units used inside; the help shows it unless it is empty
    required: bool = False
    nargs: str | None = None
    choices: Sequence[str] | None = None

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser or to a group of its options."""
        help = _with_unit(self.help, self.type)
        if self.default not in (None, ""):
            help += f"; default: {_shown(self.default, self.type)}"
        action = parser.add_argument(
            *self.names.split(),
            metavar=self.metavar,
            help=help,
            type=_reader(self.names, self.type),
            default=self.default,
            nargs=self.nargs,
            choices=self.choices,
        )
        action.required = action.required or self.required


@dataclass(frozen=True, slots=True)
class ListOption:
    """An option that may be given several times; its values form a list."""

    name: str
    metavar: str | None
    help: str
    type: Callable[[str], object] = str
    choices: Sequence[str] | None = None

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser or to a group of its options."""
        parser.add_argument(
            self.name,
            metavar=self.metavar,
            help=f"{_with_unit(self.help, self.type)}; may be repeated",
            type=_reader(self.name, self.type),
            default=[],
            action="append",
            choices=self.choices,
        )


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options with a common title; without a title, a command line may have one of them."""

    options: Sequence[Flag | Option | ListOption]
    title: str = ""

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the options to a parser."""
        titled = self.title and parser.add_argument_group(self.title)
        add_options(titled or parser.add_mutually_exclusive_group(), self.options)


@dataclass(frozen=True, slots=True)
class Reader:
    """The type of an option that holds a quantity; errors name the option."""

    quantity: Quantity
    name: str

    def __call__(self, text: str) -> float:
        """Read the value of the option."""
        return self.quantity.read(text, self.name)


def _reader(names: str, type: Callable[[str], object]) -> Callable[[str], object]:
    name = names.split()[-1]
    if type is int:
        return _whole_number(name)
    return Reader(type, name) if isinstance(type, Quantity) else type


def _whole_number(name: str) -> Callable[[str], int]:
    """Return a function that reads a whole number for the option `name`."""

    def read(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise CommschedError(f"{name} is a whole number, such as 4; got {text!a}") from None

    return read


def _with_unit(help: str, type: Callable[[str], object]) -> str:
    """Return an option's help, which says what a number without a unit means."""
    if not isinstance(type, Quantity) or type.kind is NUMBER:
        return help
    unit = type.unit.replace("%", "%%")
    meaning = f"a plain number is in {unit}" if unit else "1 is 100%%"
    meaning = "with its unit" if type.needs_unit else meaning
    return f"{help} ({type.kind.what}, such as {type.kind.example.replace('%', '%%')}; {meaning})"


def _shown(default: object, type: Callable[[str], object]) -> str:
    if isinstance(type, Quantity) and isinstance(default, float):
        return type.shown(default).replace("%", "%%")
    return f"{default:g}" if isinstance(default, float) else str(default)


# Suffixes of other formats, which a path for JSON must not have.
OTHERS = (".html", ".png", ".svg", ".pdf", ".csv", ".parquet", ".md", ".py", ".npz", ".toml", ".et")


def json_path(text: str) -> Path:
    """Read the path of a JSON file to write; refuse a suffix of another format."""
    path = Path(text)
    if path.suffix.lower() in OTHERS:
        near = path.with_suffix(".json")
        raise CommschedError(f"{path}: JSON is written, which is no {path.suffix}; nearest: {near}")
    return path


def json_file(text: str) -> Path:
    """Read the path of a JSON file to write; refuse a file that cannot be written."""
    return output_file(str(json_path(text)))


def output_file(text: str) -> Path:
    """Read the path of a file to write; refuse a file that cannot be written before any work."""
    path = Path(text)
    check_writable(path)
    return path


Table: TypeAlias = Sequence[Flag | Option | ListOption | OptionGroup]

TRAINABLE = "mlp, cnn, words, gpt, moe, autoencoder or bigrams, with sizes: gpt:128:4:4"
DEVICE = Option("--device", "D", "cpu or cuda", default="cpu")
TIMEOUT = Option("--timeout", "TIME", "end the job after this time without progress", SECONDS, 60.0)
COMPUTE = Option(
    "--compute",
    "HOW",
    "forward and backward seconds of the net: measured (as they are), modelled (a roofline of the"
    " machine's device) or scaled (from the device of the measurement to the machine's); default:"
    " scaled if the devices differ, as far as that is known",
    default="",
)
PARAM = ListOption("--param", "KEY=VALUE", "parameter of the strategy, such as overlap=backward")


def add_options(parser: argparse._ActionsContainer, table: Table) -> None:
    """Declare all options of a table."""
    for option in table:
        option.declare(parser)


def command(
    help: str, table: Table = (), epilog: str = "", ranks: bool = False
) -> Callable[[Run], Run]:
    """Return a decorator that makes a function the command of its name; see `add_command`."""

    def declared(run: Run) -> Run:
        name = run.__name__.rstrip("_")
        COMMANDS[name] = lambda to: add_command(to, name, run, help, table, epilog, ranks)
        return run

    return declared


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help: str,
    table: Table = (),
    epilog: str = "",
    ranks: bool = False,
) -> argparse.ArgumentParser:
    """Declare a command: `help` for the list of commands, `epilog` with examples for its own.

    `ranks`: all ranks of a job run it together; any other command is run by the first alone.
    """
    parser = _parser(commands, name, help, epilog)
    add_options(parser, table)
    parser.set_defaults(run=run, of_all_ranks=ranks)
    return parser


def add_actions(commands: Commands, name: str, help: str, epilog: str) -> Commands:
    """Declare a command that has actions; `add_command` declares each action."""
    parser = _parser(commands, name, help, epilog)
    return parser.add_subparsers(required=True, metavar="ACTION", title="actions")


def _parser(commands: Commands, name: str, help: str, epilog: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def pairs(words: list[str], flag: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Split words of the form KEY=VALUE; `form` names the two in errors."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise CommschedError(f"{flag} {word}: expected {form}")
        if key in found:
            raise CommschedError(
                f"{flag} {word}: {key!r} was given before, as {found[key]!r}; once is allowed"
            )
        found[key] = value
    return found
