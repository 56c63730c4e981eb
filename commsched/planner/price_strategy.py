"""The cost of a strategy for one tensor: state on a rank, and exchanges that compute may hide."""

from collections.abc import Mapping
from typing import NamedTuple

from commsched.machine.model import Machine
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Param
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES


class ExchangePrice(NamedTuple):
    """The price of the launches of one purpose, which run one after the other on a stream."""

    purpose: str
    seconds: float
    every: int  # steps
    hidden: float  # s of compute until the result is merged

    @property
    def exposed(self) -> float:
        """Return the seconds that ranks wait: max(0, seconds - hidden)."""
        return max(0.0, self.seconds - self.hidden)


class StrategyPrice(NamedTuple):
    """The state and the exchanges of a strategy."""

    state: float  # B on the rank that needs most
    sums: tuple[ExchangePrice, ...]


def price_strategy(
    numel: int,
    density: float,
    machine: Machine,
    strategy: str,
    params: Mapping[str, Param],
    compute: float,
) -> StrategyPrice:
    """Plan a net of one layer and one tensor that computes for `compute` s; price its launches.

    S steps of compute hide an exchange whose result is merged S steps later. Nothing hides an
    exchange merged at once, as no other layer computes meanwhile, nor the spread of a merged sum.
    """
    tensor = Tensor(
        name="tensor", shape=(numel,), sparsity=Sparsity(law="uniform", density=density)
    )
    layer = Layer(name="layer", tensors=(tensor,), forward=0.0, backward=compute)
    net = Net(name="one tensor", layers=(layer,))
    request = Request(net=net, machine=machine, strategy=strategy, params=params)
    plan = make_plan(request, "greedy")
    found: dict[str, ExchangePrice] = {}
    for launch in plan.launches:
        assert launch.reason is not None
        purpose = launch.purpose or launch.payload
        before = found[purpose].seconds if purpose in found else 0.0
        seconds = before + launch.reason.seconds
        hidden = 0.0 if purpose == "spread" else launch.lag * compute
        found[purpose] = ExchangePrice(purpose, seconds, launch.every, hidden)
    return StrategyPrice(STRATEGIES[strategy].memory(plan).total, tuple(found.values()))
