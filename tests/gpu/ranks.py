"""Run by `mpiexec -n 2 python -m tests.gpu.ranks DEVICE`: the bits of lockstep, on that device."""

import sys

import numpy as np

from commsched.exchange.lockstep import fresh_states
from commsched.kernels.modules import on_host
from commsched.run.job import agree
from commsched.run.wire import placement as place
from tests.mpi.test_staging import (
    BASIC,
    EXACT,
    GROUP,
    NATIVE,
    SEVERAL,
    WORLD,
    differences,
    over_mpi,
    taken,
)
from tests.support.exam import SHORT, Case, inputs, reference
from tests.support.gradients import gradients
from tests.support.ranks import together

LONG = 3_000_001  # elements, more than a chunk
# Of a sum: a device adds up products in another order, a few units of the last place in sums of 18.
NEAR = 1e-4


def beyond(method, path):
    """Whether ranks have other bits than each other, or a sum is further off than NEAR of it."""
    case = Case(method.name, method, SHORT)
    found, states = taken(case, path), []
    for number, (step, _, grads) in enumerate(inputs(case.series, WORLD.size)):
        if step == 0:
            states = fresh_states([np.zeros_like(each) for each in grads], 5, "b0")
        for state, gradient in zip(states, grads, strict=True):
            state["gradient"][:] = gradient
            state["step"] = step
        sent = reference(method, GROUP, states)[WORLD.rank]
        mine, exact = found.results[number], states[WORLD.rank]["result"]
        where = f"{method.name}, step {step}"
        if found.sent[number] != sent:
            return f"{where}: {found.sent[number]} B were sent instead of {sent}"
        if len(set(agree.gather_text(mine.tobytes().hex(), WORLD))) > 1:
            return f"{where}: other bits on other ranks"
        if np.linalg.norm(mine - exact) > NEAR * np.linalg.norm(exact):
            return f"{where}: another sum"
    return ""


def main() -> None:
    """Compare with one process; the way comes from the environment."""
    where = place.choose_placement(sys.argv[1], WORLD)
    pairs = [pair for pair in EXACT if pair.codec.name in (*BASIC, "topk:0.01")]
    rounding = [method for method in SEVERAL if method.name.startswith("powersgd")]
    exact = [each for each in [*pairs, *SEVERAL] if each not in rounding]
    together(differences(exact, (301,), where.path))
    together([beyond(method, where.path) for method in rounding])
    together(differences(pairs[:1], (LONG,), where.path))
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
