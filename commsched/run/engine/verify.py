"""`--verify`: compare every bucket's result with the dense sum of MPI's own all-reduce."""

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan
from commsched.run.engine.worker import GradientSource
from commsched.run.job import agree
from commsched.timeline.header import Verified

# float32 rounds at 2**-24 per addition; at most one per rank and one for the mean.
UNIT = 2.0**-24


class Verifier:
    """A source of gradients that stores the inputs and results of exchanges."""

    def __init__(self, plan: Plan, comm: MPI.Intracomm, source: GradientSource) -> None:
        self._source = source
        self._plan = plan
        self._comm = comm.Dup()
        self.free = self._comm.Free
        self._before: dict[int, Array] = {}
        self._after: dict[int, Array] = {}
        self._worst: dict[str, float] = {}  # method -> largest relative L2 error seen

    def gradient(self, step: int, launch: int, out: Array) -> None:
        self._source.gradient(step, launch, out)
        self._before[launch] = on_host(out).copy()

    def result(self, step: int, launch: int, values: Array) -> None:
        self._after[launch] = on_host(values).copy()
        self._source.result(step, launch, values)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        self._plan = plan
        self._before.clear()
        self._after.clear()
        self._source.follow(plan, kept)

    def check(self, step: int) -> None:
        """Compare all buckets of a step; every rank calls it after its exchanges are over."""
        for index, launch in enumerate(self._plan.launches):
            ranks = len(self._plan.group(launch).ranks)
            if ranks != self._comm.size:
                raise CommschedError(
                    f"launch {launch.name!r} exchanges among {ranks} of {self._comm.size} ranks;"
                    " --verify checks exchanges among all"
                )
            divisor = ranks if self._plan.mean else 1
            exact, size = self._reference(self._before[index], divisor)
            error = np.abs(self._after[index] - exact)
            norm = float(np.linalg.norm(exact))
            relative = float(np.linalg.norm(error)) / norm if norm else float(error.max(initial=0))
            self._worst[launch.method] = max(self._worst.get(launch.method, 0.0), relative)
            if find_method(launch.method).lossless:
                wrong = np.flatnonzero(~(error <= (ranks + 1) * UNIT * size))
                self._refuse(step, launch.name, wrong, index, exact)

    def _reference(self, values: Array, divisor: int) -> tuple[Array, Array]:
        """Return the sum over ranks in float64, and the sum of magnitudes to bound rounding."""
        exact = values.astype(np.float64)
        size = np.abs(exact)
        self._comm.Allreduce(MPI.IN_PLACE, exact)
        self._comm.Allreduce(MPI.IN_PLACE, size)
        return exact / divisor, size / divisor

    def _refuse(self, step: int, name: str, wrong: Array, index: int, exact: Array) -> None:
        """Raise on the ranks that hold a wrong element."""
        if len(wrong):
            at = int(wrong[0])
            raise CommschedError(
                f"step {step}, {name}: element {at} is {float(self._after[index][at]):.9g} on rank"
                f" {self._comm.rank}, but the dense sum gives {float(exact[at]):.9g}; {len(wrong)}"
                " elements are wrong"
            )

    def least(self, value: float) -> float:
        """Return the smallest of all ranks' numbers, on every rank."""
        return min(agree.gather_numbers(value, self._comm))

    def report(self) -> Verified:
        """Return the largest relative L2 error of each method."""
        return Verified(dict(sorted(self._worst.items())))
