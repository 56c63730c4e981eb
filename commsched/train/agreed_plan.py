"""A plan on which the ranks of a training agree, made for the net profiled here."""

from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from commsched.errors import Agreed
from commsched.net.graph import Net
from commsched.plan import file as plan_file
from commsched.plan.model import Param, Plan
from commsched.program.parameters import settled
from commsched.program.read_plan import plan_from_data
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, degrees_of
from commsched.run.job import agree
from commsched.train.sample_order import check_batch

Make = Callable[[Net, int], Plan]  # (net, number of ranks) -> plan


def check_strategy(plan: Plan, strategy: str) -> None:
    """Raise an error on all ranks if the plan has another strategy."""
    if plan.strategy != strategy:
        raise Agreed(f"the plan has strategy {plan.strategy!r}, but --strategy is {strategy!r}")


def _made(make: Make, net: Net, comm: MPI.Intracomm) -> Plan:
    """Return on all ranks the plan that rank 0 makes."""

    def made() -> Any:
        return None if comm.rank else plan_file.to_data(make(net, comm.size))

    data = agree.broadcast_data(agree.on_all_ranks(made, comm), comm)
    return plan_from_data(data, "the plan")


def profile_and_plan(
    profile: Callable[[int], Net],
    strategy: str,
    params: Mapping[str, Param],
    batch: int,
    samples: int,
    comm: MPI.Intracomm,
    make: Make,
) -> Plan:
    """Profile a net with as many samples as a rank computes at once, and plan; all ranks call it.

    In a pipeline these samples are a microbatch, whose size depends on the number of stages. If the
    plan needs more stages, the net is profiled and planned again.
    """
    ranks, chosen = comm.size, STRATEGIES[strategy]
    if not isinstance(chosen, PipelineStrategy):
        return _made(make, profile(batch // ranks), comm)
    found = settled(strategy, params, chosen.parameters)
    stages, width = (count or 1 for count in degrees_of(found))
    while True:
        parts = max(1, ranks // (stages * width)) * int(found["microbatches"])
        plan = _made(make, profile(max(1, batch // parts)), comm)
        if degrees_of(plan.params) == (stages, width):
            check_batch(batch, samples, parts, "microbatches")
            return plan
        stages, width = degrees_of(plan.params)
