"""The slowness of compute on each rank in each step: jitter and stalls, drawn from a seed."""

from math import ceil, floor

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.kernels import random
from commsched.machine.model import Machine
from commsched.machine.stalls import NODE, Stalls

SPELLS = 64  # most spells that are drawn per step; more would hardly change their mean


def slowness(machine: Machine, seed: int, step: int, ranks: Ints, seconds: float) -> Floats:
    """Return the factor on the compute of each rank in a step of `seconds` s: (ranks,).

    The factor depends only on these arguments, so a rank needs no history to draw its own.
    """
    longer, usual = np.ones(len(ranks)), 1.0
    for number, law in enumerate(machine.stalls):
        who = np.array(machine.node_of_rank)[ranks] if law.among == NODE else ranks
        longer += _longer(law, seed, step, who, f"stall {number}", seconds)
        usual += law.usual
    return longer / usual * random.jitter(machine.jitter, seed, step, ranks)


def fastest(machine: Machine, seed: int, step: int) -> float:
    """Return a lower bound of all ranks' factors in a step of any length."""
    usual = 1.0 + sum(law.usual for law in machine.stalls)
    return float(random.jitter(machine.jitter, seed, step, np.arange(machine.size)).min()) / usual


def _longer(law: Stalls, seed: int, step: int, who: Ints, name: str, seconds: float) -> Floats:
    """Draw one stall per spell, and weigh it by the share of the step that the spell covers.

    Spells last `law.steps` draws; those of ranks begin at different draws.
    """
    draws = seconds / law.every if law.every else 1.0  # of a step
    spell = max(law.steps, draws / SPELLS)  # draws
    begins = step * draws + np.floor(random.uniform(seed, 0, who, f"{name} begins") * spell)
    first, last = floor(step * draws / spell), ceil((step + 1) * draws / spell)
    longer = np.zeros(len(who))
    for number in range(first, last + 1):
        start, end = number * spell, (number + 1) * spell
        covered = np.minimum(begins + draws, end) - np.maximum(begins, start)
        if (some := covered > 0.0).any():
            drawn = law.longer(random.uniform(seed, number, who, name))
            longer += np.where(some, covered / draws * drawn, 0.0)
    return longer
