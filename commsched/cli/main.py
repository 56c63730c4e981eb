"""Find and run a command; print an error as one line and return an exit status."""

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import commsched
from commsched import plug_ins
from commsched.cli import commands
from commsched.cli.options import COMMANDS, Commands
from commsched.errors import Agreed, CommschedError, install
from commsched.nearest_name import nearest
from commsched.terminal import OutputLostError, printable_streams

EXTRAS = {"mpi4py": "mpi", "cupy": "cuda"}  # optional package -> the extra that installs it

OUTPUTS = {"output": "-o", "log": "--log", "figure": "--figure"}  # where results go
NO_INPUT = ("line", *OUTPUTS)  # no inputs: the typed words, and the outputs

GROUPS = {  # title in the list of commands -> its commands; the others follow under More
    "Start": ("demo", "doctor", "list", "explain", "models", "completion"),
    "Plan": ("plan", "price", "machine", "calibrate", "import", "profile", "capture"),
    "Run": ("run", "train", "elastic", "testbed"),
    "Look": ("simulate", "show", "compare", "plot", "export"),
    "Research": ("sweep", "new", "check", "validate", "reproduce", "bench"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 2 after an error that the user can fix, 130 after an interrupt."""
    with printable_streams():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    said = "interrupted before the command began; nothing is written"
    try:
        typed = argparse.Namespace(line=arguments, whole_parser=whole_parser)
        words = _used_plug_ins(arguments)
        parsed, more = _parser(words).parse_known_args(words, typed)
        if more:
            unknown = ", ".join(map(repr, more))
            said = f"{unknown}: not understood; see 'commsched {words[0]} --help'"
            sys.exit(_report(CommschedError(said)))
        check_output(parsed, in_place=("machine",) if words[0] == "machine" else ())
        if not parsed.of_all_ranks and _one_of_many() and not _first(words[0]):
            return 0
        said = "interrupted"
        status = parsed.run(parsed)
        sys.stdout.flush()
        return int(status or 0)
    except CommschedError as error:
        return _report(error)
    except OutputLostError as error:
        return _report(CommschedError(str(error)))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        from commsched.run.job.launcher import environment_rank

        if interrupt.args or environment_rank() is None:  # a rank reports its interrupt itself
            print(f"commsched: {str(interrupt) or said}", file=sys.stderr)
        return 130
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing in EXTRAS or (missing and _one_of_many()):
            advice = install(EXTRAS.get(missing, "mpi"))
            return _report(CommschedError(f"{missing} is not installed; {advice}"))
        if not _one_of_many():
            raise
        _fail(error)
        return 1


def _used_plug_ins(arguments: Sequence[str]) -> list[str]:
    """Import each file of `--plugin FILE` anywhere in the words; return the other words."""
    words, rest = list(arguments), list[str]()
    while words and words[0] != "--":
        word = words.pop(0)
        option, equals, path = word.partition("=")
        if option != "--plugin":
            rest.append(word)
        elif equals or words:
            plug_ins.use(path if equals else words.pop(0))
        else:
            raise CommschedError("--plugin needs a Python file")
    return rest + words


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one sentence, like other errors."""

    def _get_value(self, action: argparse.Action, text: str) -> object:
        """Read a value; pass on a `CommschedError`, whose text argparse would replace."""
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, CommschedError):
                raise error.__context__ from None
            raise

    def _parse_optional(self, arg_string: str) -> Any:
        """Take a list whose first value is a dash, such as -,fp16, as a value, not as an option."""
        return None if arg_string.startswith("-,") else super()._parse_optional(arg_string)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse an unknown command, action or choice, with the nearest one."""
        known = [str(choice) for choice in action.choices or ()]
        if known and value not in known:
            what = str(action.metavar or action.dest or "").lower()
            what = action.option_strings[-1] if action.option_strings else what
            near = nearest(str(value), known) or f"; known: {', '.join(known)}"
            self.error(f"no {what} {value!a}{near}")

    def error(self, message: str) -> NoReturn:
        sys.exit(_report(CommschedError(f"{message}; see '{self.prog} --help'")))


class _Main(_Parser):
    """The parser of all commands, whose help lists them in groups."""

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        (commands,) = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        listed = {action.dest: action for action in commands._get_subactions()}
        for title, names in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments(listed.pop(name) for name in names if name in listed)
            formatter.end_section()
        formatter.start_section("More")
        formatter.add_arguments(listed.values())
        formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(self._get_optional_actions())
        formatter.end_section()
        formatter.add_text("'commsched COMMAND --help' tells more, with an example.")
        return formatter.format_help()


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Declare the command at the start of `arguments`, or all commands."""
    parser = _Main(prog="commsched", description=commsched.__doc__)
    version = f"commsched {commsched.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument(
        "--plugin", metavar="FILE", help="Python file that registers collectives, codecs, ..."
    )
    parsers: Commands = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=_Parser
    )
    known = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    for name in {*arguments[:1]}.intersection(known) or known:
        importlib.import_module(f"{commands.__name__}.{name}")
        COMMANDS[name](parsers)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Declare all commands."""
    return _parser([])


def _report(error: CommschedError) -> int:
    """Print an error: once if all ranks raise it, else with the rank, and then end the job."""
    from commsched.run.job.launcher import environment_rank

    if _one_of_many() and not isinstance(error, Agreed):
        _fail(error)
    elif environment_rank() in (None, 0):
        print(f"commsched: {error}", file=sys.stderr)
    return 2


def _one_of_many() -> bool:
    """Tell whether a launcher started this process as one of several ranks."""
    from commsched.run.job.launcher import expected_size

    return (expected_size() or 1) > 1


def _first(command: str) -> bool:
    """Tell whether this rank does the work of a command that needs one process, with a message."""
    from commsched.run.job.launcher import environment_rank, expected_size

    if environment_rank():
        return False
    told = f"'{command}' needs one process: the first of {expected_size()} works alone"
    print(f"commsched: {told}", file=sys.stderr, flush=True)
    return True


def _fail(error: Exception) -> None:
    """Say that this rank fails, and end its job."""
    from commsched.run.job.ending import fail
    from commsched.run.job.launcher import environment_rank

    fail(error, environment_rank() or 0)


def check_output(parsed: argparse.Namespace, in_place: Collection[str] = ()) -> None:
    """Refuse an output that is the same file as an input or another output, under any name.

    in_place: names of options whose file the command may change.
    """
    before: dict[str, str | Path] = {}
    for name, flag in OUTPUTS.items():
        path = getattr(parsed, name, None)
        if not isinstance(path, str | Path) or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        for other in _paths(parsed, {*NO_INPUT, *in_place}):
            if os.path.isfile(path) and _same(path, other):
                raise CommschedError(f"{path}: is read by this command; give {flag} another file")
        for first, other in before.items():
            if _same(path, other):
                raise CommschedError(f"{path}: is written by {first}; give {flag} another file")
        before[flag] = path


def _same(one: str | Path, other: str | Path) -> bool:
    """Tell whether two paths lead to the same file, which may not exist yet."""
    if os.path.isfile(one) and os.path.isfile(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _paths(parsed: argparse.Namespace, but: Collection[str]) -> Iterator[str | Path]:
    """Yield all values that may be paths, also those of NAME=PATH."""
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if name not in but and isinstance(one, str | Path) and "\0" not in str(one):
                yield one
                yield str(one).partition("=")[2]
