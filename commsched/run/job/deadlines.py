"""How long the ranks of a job wait for each other before they give up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds of patience, beside the timeout that a user sets."""

    look: float = (
        0.25  # between looks of a watchdog: some 50 us each, which measurements do not feel
    )
    idle: float = 0.1  # between looks of the communication thread
    meeting: float = 4.0  # that ranks may come apart to where they meet, however short the timeout
    grace: float = 2.0  # that the other ranks get to say what they wait for before an abort
    heard: float = 2.0  # that the launcher gets to read what was said before
    hard: float = 10.0  # that MPI_Abort gets


_in_use = Deadlines()


def deadlines() -> Deadlines:
    """Return the deadlines of this process."""
    return _in_use


def use(chosen: Deadlines) -> None:
    """Set the deadlines of this process, before a command begins."""
    global _in_use
    _in_use = chosen
