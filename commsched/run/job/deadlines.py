"""The deadlines of a job: how long its ranks wait for each other before they give up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds of patience, in addition to the timeout that a user sets."""

    look: float = 0.25  # between polls of a watchdog; 50 us each, too short to disturb measurements
    idle: float = 0.1  # between checks by the communication thread
    arrival: float = 6.0  # for the other ranks to start commsched, plus `arrivals`
    arrivals: float = 4.0  # times this rank's own seconds to start
    meeting: float = 4.0  # spread of the ranks' arrival at a meeting, for any timeout
    slow: float = 10.0  # waiting for a rank before that rank is named
    grace: float = 2.0  # for the other ranks to print what they wait for before an abort
    heard: float = 2.0  # for the launcher to read the ranks' output
    hard: float = 10.0  # for MPI_Abort


_in_use = Deadlines()


def deadlines() -> Deadlines:
    """Return the deadlines of this process."""
    return _in_use


def use(chosen: Deadlines) -> None:
    """Set the deadlines of this process, before a command begins."""
    global _in_use
    _in_use = chosen
