"""`--verify`: the comparison of every bucket's result with MPI's own all-reduce of the inputs."""

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.exchange.sharded import shard_of
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan
from commsched.run.engine.channels import channel, communicators
from commsched.run.engine.worker import GradientSource, ParameterHolder
from commsched.run.job import agree
from commsched.timeline.header import Verified

# float32 rounds at 2**-24 per addition; at most one per rank and one for the mean.
UNIT = 2.0**-24


class Verifier:
    """A source of gradients and holder of parameters that stores inputs and results of exchanges.

    For parameters gathered from shards, every rank must get the bits of an element's one owner.
    """

    def __init__(
        self, plan: Plan, comm: MPI.Intracomm, source: GradientSource, holder: ParameterHolder
    ) -> None:
        self._source, self._holder, self._plan = source, holder, plan
        self._comm = comm.Dup()
        self._teams = communicators(plan, comm)
        self._before: dict[int, Array] = {}
        self._after: dict[int, Array] = {}
        self._worst: dict[str, float] = {}  # method -> largest relative L2 error seen

    def free(self) -> None:
        """Free the communicators; all ranks call it."""
        for comm in (self._comm, *self._teams.values()):
            if comm != MPI.COMM_NULL:
                comm.Free()

    def gradient(self, step: int, launch: int, out: Array) -> None:
        self._source.gradient(step, launch, out)
        self._before[launch] = on_host(out).copy()

    def result(self, step: int, launch: int, values: Array) -> None:
        self._after[launch] = on_host(values).copy()
        self._source.result(step, launch, values)

    def parameters(self, step: int, launch: int, out: Array) -> None:
        self._holder.parameters(step, launch, out)
        own = shard_of(self._plan, launch, self._comm.rank)
        self._before[launch] = np.zeros(len(out), np.float32)
        self._before[launch][own] = on_host(out[own])

    def replace(self, step: int, launch: int, values: Array) -> None:
        self._after[launch] = on_host(values).copy()
        self._holder.replace(step, launch, values)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        self._teams = communicators(plan, self._comm, self._teams)
        self._plan = plan
        self._before.clear()
        self._after.clear()
        self._source.follow(plan, kept)

    def check(self, step: int) -> None:
        """Compare all buckets of a step; every rank calls it after its exchanges are over."""
        for index, launch in enumerate(self._plan.launches):
            method, ranks = find_method(launch.method), self._plan.group(launch).size
            if not method.sharded and ranks != self._comm.size:
                raise CommschedError(
                    f"launch {launch.name!r} exchanges among {ranks} of {self._comm.size} ranks;"
                    " --verify checks exchanges among all"
                )
            exact, bound = self._reference(index)
            error = np.abs(self._after[index] - exact)
            norm = float(np.linalg.norm(exact))
            relative = float(np.linalg.norm(error)) / norm if norm else float(error.max(initial=0))
            self._worst[launch.method] = max(self._worst.get(launch.method, 0.0), relative)
            if method.lossless:
                wrong = np.flatnonzero(~(error <= bound))
                self._refuse(step, launch.name, wrong, index, exact)

    def _reference(self, index: int) -> tuple[Array, Array]:
        """Return a launch's exact result on this rank in float64, and the tolerance for float32."""
        launch = self._plan.launches[index]
        comm, exact = self._teams[channel(launch)], self._before[index].astype(np.float64)
        size, gathers = np.abs(exact), launch.payload == "parameter"
        comm.Allreduce(MPI.IN_PLACE, exact)
        comm.Allreduce(MPI.IN_PLACE, size)
        if gathers:
            return exact, np.zeros_like(size)
        own = slice(None)
        if find_method(launch.method).sharded:
            own = shard_of(self._plan, index, self._comm.rank)
        divisor = comm.size if self._plan.mean else 1
        return exact[own] / divisor, (comm.size + 1) * UNIT * size[own] / divisor

    def _refuse(self, step: int, name: str, wrong: Array, index: int, exact: Array) -> None:
        """Raise an error on the ranks that have a wrong element."""
        if len(wrong):
            at = int(wrong[0])
            gathers = self._plan.launches[index].payload == "parameter"
            what = "gather" if gathers else "sum"
            raise CommschedError(
                f"step {step}, {name}: element {at} is {float(self._after[index][at]):.9g} on rank"
                f" {self._comm.rank}, but the dense {what} gives {float(exact[at]):.9g};"
                f" {len(wrong)} elements are wrong"
            )

    def least(self, value: float) -> float:
        """Return the smallest of all ranks' numbers, on every rank."""
        return min(agree.gather_numbers(value, self._comm))

    def report(self) -> Verified:
        """Return the largest relative L2 error of each method."""
        return Verified(dict(sorted(self._worst.items())))
