"""The exceptions that a user sees, and how to install what an error misses."""

from commsched.terminal import printable, shortened


class CommschedError(ValueError):
    """Something the user can fix: says where, what was wrong and what is allowed.

    The command line prints it as `commsched: ...` and exits with status 2. What it quotes from
    files is escaped and shortened.
    """

    def __str__(self) -> str:
        return shortened(printable(super().__str__(), lines=True))


class TooLittleTime(CommschedError):
    """A time limit ended before there was anything to tell."""


class NotFiniteError(CommschedError):
    """A gradient has NaN or an infinity: a training with these settings has diverged."""


class Agreed(CommschedError):
    """An error that all ranks raise alike, so that each rank can end without waiting for others."""


def install(extra: str) -> str:
    """Say how to install an extra; commsched is on no package index."""
    return f"pip install '.[{extra}]' in the folder of commsched's source"
