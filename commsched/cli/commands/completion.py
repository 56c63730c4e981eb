"""`commsched completion SHELL`: a script with which a shell completes commands and options."""

import argparse
from pathlib import Path

from commsched.cli.options import Commands, Option, add_command
from commsched.errors import CommschedError, install

SHELLS = ("bash", "zsh", "fish")
EXAMPLE = """example:
  commsched completion bash > ~/.local/share/bash-completion/completions/commsched
  commsched completion zsh > ~/.zfunc/_commsched      # a folder of $fpath
  commsched completion fish > ~/.config/fish/completions/commsched.fish
"""


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "print a script with which bash, zsh or fish completes commands and options"
    options = [Option("shell", "SHELL", "bash, zsh or fish", choices=SHELLS)]
    add_command(commands, "completion", completion, text, options, EXAMPLE)


def completion(args: argparse.Namespace) -> None:
    """Print the script for a shell."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise CommschedError(f"completion needs shtab; {install('completion')}") from None
    parser = args.whole_parser()
    for each in _all(parser):
        for action in each._actions:
            if action.type is not None and _is_file(action):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))


def _is_file(action: argparse.Action) -> bool:
    return action.type is Path or getattr(action.type, "__name__", "") == "output_file"


def _all(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found += _all(each)
    return found
