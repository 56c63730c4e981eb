"""MPICH's choice of an all-reduce."""

from commsched.machine.library import LIBRARIES, Algorithm, Library
from commsched.machine.model import Group, Machine

SHORT = 2048.0  # B; MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE, and `avg_msg_size<=2048`, see below


def algorithm(machine: Machine, group: Group, nbytes: float) -> Algorithm:
    """Take recursive doubling up to 2 kB, and for few values; beyond, Rabenseifner's algorithm.

    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005; MPICH 5.0.1, collective `iallreduce`
    of maint/tuning/coll/mpir/generic.json, which a run of ours calls. Left out: the blocking call
    of CH4, which on several nodes reduces to one rank of each node first.
    """
    power = 1 << (group.size.bit_length() - 1)
    if nbytes <= SHORT or nbytes / 4 < power:
        return Algorithm(collective="doubling", name="recursive doubling")
    return Algorithm(collective="halving-doubling", name="Rabenseifner")


LIBRARIES.add("mpich")(Library("MPICH", algorithm))
