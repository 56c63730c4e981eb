"""Commands and their options as tables, from which argparse makes the parsers."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option without a value."""

    name: str
    help: str

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the flag to a parser or to a group of its options."""
        parser.add_argument(self.name, action="store_true", help=self.help)


@dataclass(frozen=True, slots=True)
class Option:
    """An option with a value or, if the name has no dashes, a positional argument."""

    names: str  # separated by blanks, such as "-o --output"
    metavar: str | None
    help: str
    type: Callable[[str], object] = str
    default: object = None  # the help ends with it, unless it is None or empty
    required: bool = False
    nargs: str | None = None
    choices: Sequence[str] | None = None

    def declare(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser or to a group of its options."""
        default = f"{self.default:g}" if isinstance(self.default, float) else self.default
        action = parser.add_argument(
            *self.names.split(),
            metavar=self.metavar,
            help=self.help if default in (None, "") else f"{self.help}; default: {default}",
            type=self.type,
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
            help=f"{self.help}; may be repeated",
            type=self.type,
            default=[],
            action="append",
            choices=self.choices,
        )


Table: TypeAlias = Sequence[Flag | Option | ListOption]

DEVICE = Option("--device", "D", "cpu or cuda", default="cpu")
TIMEOUT = Option("--timeout", "S", "end the job after S seconds without progress", float, 60.0)
MACHINE = Option("--machine", "M", "shipped machine, or machine file", required=True)
PARAM = ListOption("--param", "KEY=VALUE", "parameter of the strategy, such as overlap=backward")


def add_options(parser: argparse._ActionsContainer, table: Table) -> None:
    """Declare all options of a table."""
    for option in table:
        option.declare(parser)


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help: str,
    table: Table = (),
    epilog: str = "",
) -> argparse.ArgumentParser:
    """Declare a command: `help` for the list of commands, `epilog` with examples for its own."""
    parser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, table)
    parser.set_defaults(run=run)
    return parser
