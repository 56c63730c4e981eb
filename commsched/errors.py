"""The one exception that a user sees."""


class CommschedError(Exception):
    """Something the user can fix: says where, what was wrong and what is allowed.

    The command line prints it as `commsched: ...` and exits with status 2.
    """
