"""The stalls of compute in a measured timeline, as laws for its machine file."""

from commsched.errors import CommschedError
from commsched.machine.model import Machine
from commsched.machine.stalls import Stalls, fitted
from commsched.timeline import measure
from commsched.timeline.model import Timeline

FEWEST = 100  # fewest steps for a distribution


def stalls(t: Timeline, machine: Machine) -> tuple[Stalls, ...]:
    """Return the laws of a run's stalls on a machine's ranks, first the law of nodes."""
    if t.ranks != machine.size:
        raise CommschedError(
            f"the timeline has {t.ranks} ranks, machine {machine.name!r} {machine.size};"
            " resize the machine file"
        )
    keep = measure.settled(t)
    if keep.sum() < FEWEST:
        raise CommschedError(
            f"the timeline has {int(keep.sum())} steps that count; a law of stalls needs {FEWEST}"
        )
    if measure.COMPUTE not in t.streams or len(measure.ranks_seen(t)) < t.ranks:
        raise CommschedError("the timeline lacks the compute of some ranks")
    seconds = measure.busy(t)[:, keep, t.streams.index(measure.COMPUTE)]
    return fitted(seconds.T, machine.node_of_rank)
