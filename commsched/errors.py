"""The exceptions that a user sees, and the command that installs a missing extra."""

from commsched.terminal import printable, shortened


class CommschedError(ValueError):
    """Something the user can fix: says where, what was wrong and what is allowed.

    The command line prints the error as `commsched: ...` and exits with status 2. Text quoted from
    files is escaped and shortened.
    """

    def __str__(self) -> str:
        return shortened(printable(super().__str__(), lines=True))


class TooLittleTime(CommschedError):
    """A time limit ended before there was any result."""


class NotFiniteError(CommschedError):
    """A gradient has NaN or an infinity: a training with these settings has diverged."""


class Agreed(CommschedError):
    """An error that all ranks raise alike, so that each rank can end without waiting for others."""


def install(extra: str) -> str:
    """Return the command that installs an extra from the source: commsched is on no index."""
    return f"pip install '.[{extra}]' in the folder of commsched's source"
