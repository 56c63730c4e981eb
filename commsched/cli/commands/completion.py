"""`commsched completion SHELL`: a script with which a shell completes a command line."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commsched.cli.options import Option, command
from commsched.errors import CommschedError, install

if TYPE_CHECKING:
    from commsched.cli.completion_words import Words

SHELLS = ("bash", "zsh", "fish")
EXAMPLE = """example:
  commsched completion bash > ~/.local/share/bash-completion/completions/commsched
  commsched completion zsh > ~/.zfunc/_commsched      # a folder of $fpath
  commsched completion fish > ~/.config/fish/completions/commsched.fish
"""
HELP = "print a script with which bash, zsh or fish completes commands, options, names, files"
OPTIONS = (Option("shell", "SHELL", "bash, zsh or fish", choices=SHELLS),)
# Each function offers names for the part of a word after its last comma, files for the whole word.
BASH = """{function}() {{
  compgen -P "${{1%"${{1##*,}}"}}" -W "{names}" -- "${{1##*,}}"
  {files}
}}"""
ZSH = """{function}() {{
  local -a names=({names})
  {files}
  compset -P '*,'
  compadd "$@" -a names
}}"""
FISH = """function {function}
  set -l typed (commandline -ct)
  for name in {names}
    echo (string replace -r '[^,]*$' '' -- $typed)$name
  end
  {files}
end"""
FILES = {
    "bash": 'compgen -f -- "$1"',
    "zsh": '_files "$@"',
    "fish": "__fish_complete_path $typed",
}


@command(HELP, OPTIONS, EXAMPLE)
def completion(args: argparse.Namespace) -> None:
    """Print the script for a shell."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise CommschedError(f"completion needs shtab; {install('completion')}") from None
    from commsched.cli.completion_words import is_folder, places, words

    parser, known = args.whole_parser(), places()
    functions: dict[Words, str] = {}
    for name, action in _actions(parser, ""):
        found = words(known, name, action)
        if is_folder(action):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif any(found) and action.choices is None:
            kind = "File" if found.files else "names"  # in bash, shtab escapes a File's words
            function = functions.setdefault(found, f"_commsched_{kind}_{len(functions)}")
            action.complete = _complete(found, function)  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))


def _complete(words: "Words", function: str) -> dict[str, Any]:
    """Describe to shtab a function that offers words, in each shell."""
    preamble = {}
    for shell, text in (("bash", BASH), ("zsh", ZSH), ("fish", FISH)):
        files = FILES[shell] if words.files else ""
        preamble[shell] = text.format(function=function, names=" ".join(words.names), files=files)
    return {"bash": function, "zsh": function, "fish": f"({function})", "preamble": preamble}


def _actions(
    parser: argparse.ArgumentParser, command: str
) -> Iterator[tuple[str, argparse.Action]]:
    """Yield each action that takes a value, after the name of its command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from _actions(each, f"{command} {name}".strip())
        elif action.nargs != 0:
            yield command, action
