"""How much longer compute takes on each rank in each step: jitter and stalls, drawn from a seed."""

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.kernels import random
from commsched.machine.model import Machine
from commsched.machine.stalls import NODE, Stalls


def slowness(machine: Machine, seed: int, step: int, ranks: Ints) -> Floats:
    """Return the factor on the compute of each rank in a step: (ranks,).

    It depends on nothing but these arguments, so that a rank needs no history to draw its own.
    """
    longer = np.ones(len(ranks))
    for number, law in enumerate(machine.stalls):
        who = np.array(machine.node_of_rank)[ranks] if law.among == NODE else ranks
        longer += _longer(law, seed, step, who, f"stall {number}")
    return longer * random.jitter(machine.jitter, seed, step, ranks)


def _longer(law: Stalls, seed: int, step: int, who: Ints, name: str) -> Floats:
    """Draw a stall per spell of `steps` steps; the spells of ranks begin at different steps."""
    shift = (random.uniform(seed, 0, who, f"{name} begins") * law.steps).astype(np.int64)
    spell, past = divmod(step, law.steps)
    here, next_ = (random.uniform(seed, spell + i, who, name) for i in (0, 1))
    return law.longer(np.where(past + shift < law.steps, here, next_))
