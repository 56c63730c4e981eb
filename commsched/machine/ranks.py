"""A machine of so many ranks."""

from commsched.errors import CommschedError
from commsched.machine.model import Machine, resized


def of_ranks(machine: Machine, ranks: int) -> Machine:
    """Give a machine as many nodes as hold `ranks` ranks; fewer than a node has fill a part."""
    lanes = machine.everyone.lanes
    if ranks <= lanes:
        return resized(machine, 1, ranks)
    if ranks % lanes:
        low = ranks // lanes * lanes
        raise CommschedError(
            f"{ranks} ranks do not fill nodes of {lanes} ranks of machine {machine.name!r};"
            f" nearest: {low} or {low + lanes}"
        )
    return resized(machine, ranks // lanes)
