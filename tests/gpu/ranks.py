"""Run by `mpiexec -n 2 python -m tests.gpu.ranks DEVICE`: the bits of lockstep, on that device."""

import sys

import numpy as np

from commsched.kernels.modules import on_host
from commsched.methods.lockstep import fresh_states
from commsched.run import place
from tests.mpi.test_staging import (
    BASIC,
    EXACT,
    NATIVE,
    SEVERAL,
    WORLD,
    difference,
    inputs_of,
    over_mpi,
)
from tests.ranks import together
from tests.supports import gradients

LONG = 3_000_001  # elements, more than a chunk


def main() -> None:
    """Compare with one process; the way comes from the environment."""
    where = place.choose(sys.argv[1], WORLD)
    pairs = [pair for pair in EXACT if pair.codec.name in (*BASIC, "topk:0.01")]
    rounding = [method for method in SEVERAL if method.name.startswith("powersgd")]
    exact = [each for each in [*pairs, *SEVERAL] if each not in rounding]
    together([difference(each, inputs_of(301), where.path) for each in exact])
    # A device adds up products in another order: a few units of the last place in sums of 18.
    together([difference(each, inputs_of(301), where.path, 1e-4) for each in rounding])
    together([difference(pairs[0], inputs_of(LONG)[:1], where.path)])
    grads = gradients("alone", WORLD.size, LONG)  # whole numbers
    state = fresh_states([g.copy() for g in grads])[WORLD.rank]
    state["gradient"] = where.device.module.asarray(state["gradient"])
    over_mpi(NATIVE[0], LONG, state, where.path)
    good = np.array_equal(on_host(state["result"]), np.sum(grads, axis=0))
    together(["" if good else "native: not the sum"])
    if WORLD.rank == 0:
        print(f"as in one process, {where.shown}")


if __name__ == "__main__":
    main()
