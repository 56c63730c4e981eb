"""The all-reduce along the directions of a torus."""

from dataclasses import replace

from commsched.machine.model import Group
from commsched.schedule.levels import by_levels, torus_table
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Schedule


@COLLECTIVES.add("torus")
def torus(group: Group) -> Schedule:
    """Reduce-scatter around every direction of a torus in turn; all-gather on the way back.

    X x Y x Z ranks: 2 (X + Y + Z - 3) rounds in which all messages go to neighbours; every rank
    sends 2 (p - 1) / p of the tensor, the least possible. Other levels of the machine are one
    direction each; ranks without a torus are laid out as the grid that is nearest to a square. Good
    for a torus, and for many ranks on equal links: as few bytes as a ring in far fewer rounds.
    Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash",
    arXiv 1811.05233, 2018 (2-D torus); Jouppi et al., "TPU v4", ISCA 2023 (3-D).
    """
    schedule = by_levels("torus", torus_table(group))
    return replace(schedule, apt=any(span.torus for span in group.levels))
