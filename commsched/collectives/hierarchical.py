"""The ring all-reduce of many levels: inside each unit, then across units, and back."""

from commsched.machine.model import Group
from commsched.schedule.levels import by_levels
from commsched.schedule.nesting import nested
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Schedule


@COLLECTIVES.add("hierarchical")
def hierarchical(group: Group) -> Schedule:
    """Reduce-scatter in each unit of a level, then across the units; all-gather on the way back.

    N nodes of K lanes: 2 (K - 1) + 2 (N - 1) rounds; every rank sends 2 (K - 1) / K of the tensor
    inside its node and 2 (N - 1) / (N K) of it between nodes. Each further level divides what is
    left by its number of children. Good if links are slower the further out they are; needs
    equally many ranks on each node, and passes over levels whose units are filled unevenly.
    Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
    network hierarchy", MLSys 2019.
    """
    return by_levels("hierarchical", nested(group))
