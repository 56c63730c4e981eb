"""Write docs/commsched.1, which a wheel installs: `python docs/extension/man_page.py`."""

import argparse
from pathlib import Path

from commsched import __version__
from commsched.cli.main import GROUPS, whole_parser

PAGE = Path(__file__).parents[1] / "commsched.1"
END = """\
.SH EXIT STATUS
0 for success, 1 if a requested comparison or check failed, 2 for an error that the user can fix,
130 after an interrupt.
.SH ENVIRONMENT
.TP
.B NO_COLOR
no colours on a terminal
.SH SEE ALSO
.BR mpiexec (1)
"""


def man_page() -> str:
    """Return the page: every command in its group, with the line that the help has."""
    parser = whole_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = {action.dest: str(action.help) for action in commands._get_subactions()}
    text = [
        f'.TH COMMSCHED 1 "" "commsched {__version__}"',
        ".SH NAME",
        r"commsched \- plan, predict, run and show the communication of neural-network training",
        ".SH SYNOPSIS",
        r".B commsched [\-\-plugin FILE] COMMAND [OPTION ...]",
        ".SH DESCRIPTION",
        r"Every command tells its options and an example with \fB\-\-help\fR.",
    ]
    for title, names in GROUPS.items():
        text.append(f".SS {title}")
        for name in names:
            text += [".TP", f".B {_escaped(name)}", _escaped(lines[name])]
    return "\n".join(text) + "\n" + END


def _escaped(text: str) -> str:
    """Let a line begin with no macro, and hyphens be ASCII."""
    plain = text.replace("%%", "%").replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


if __name__ == "__main__":
    PAGE.write_text(man_page())
