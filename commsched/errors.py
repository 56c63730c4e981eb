"""The exceptions that a user sees, and how to install what an error misses."""


class CommschedError(Exception):
    """Something the user can fix: says where, what was wrong and what is allowed.

    The command line prints it as `commsched: ...` and exits with status 2.
    """


class Agreed(CommschedError):
    """An error that all ranks raise alike, so that each rank can end without waiting for others."""


def install(extra: str) -> str:
    """Say how to install an extra; commsched is on no package index."""
    return f"pip install '.[{extra}]' in the folder of commsched's source"
