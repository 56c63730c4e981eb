"""A request: what the user wants planned, and the methods that the plan may use."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from commsched.exchange.method import Method
from commsched.exchange.recorded_gradients import Recorded
from commsched.exchange.registry import legal_methods, lossy_name
from commsched.machine.model import Group, Machine
from commsched.net.graph import Net
from commsched.plan.model import Launch, Param, Plan
from commsched.simulate.exchange_costs import Known

Report = Callable[[str, float], None]  # name of the last change, and s of the best iteration


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user wants planned."""

    net: Net
    machine: Machine
    strategy: str = "sync"
    params: Mapping[str, Param] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()  # lossy codecs and methods that may be used; lossless ones always
    messages: tuple[str, ...] = ()  # lossy codecs that messages of pipelines may have
    coded: Callable[[Plan], bool] | None = None  # whether a plan's message codec is allowed
    max_error: float | None = None  # relative error of a lossy method in a step; None: any
    small: bool = False  # with max_error: lossy methods also for biases, norms, small tensors
    recorded: Recorded | None = None  # gradients to measure errors on; None: random ones
    lossless: bool = False  # refuse a forced method that loses something
    force: Mapping[str, str] = field(default_factory=dict)  # tensor -> method
    bucket: float | None = None  # B; None: the planner's choice
    scale: float = 1.0  # factor by which the net was scaled; scales buckets of fixed sizes, too
    memory: float | None = None  # B per rank; None: no limit
    without: frozenset[str] = frozenset()  # names of methods that are not used unless forced
    mean: bool = True
    seed: int = 0
    time_limit: float | None = None  # s of search; None: until no change helps
    # Exchanges that plans of several requests for one machine share.
    played: Known | None = None
    report: Report | None = None  # called with every better plan

    @property
    def room(self) -> float:
        """Return the B per rank that a plan should not exceed: the limit or the device's memory."""
        return self.machine.device.memory if self.memory is None else self.memory

    def methods(self, group: Group) -> Iterator[Method]:
        """Yield the legal methods that this request allows."""
        allowed = {lossy_name(name) for name in self.lossy}
        for method in legal_methods(group, more=self.lossy):
            if (method.lossless or method.coding in allowed) and method.name not in self.without:
                yield method

    def plan(self, launches: Sequence[Launch] = ()) -> Plan:
        """Return the plan of these launches; a plan without launches answers some questions."""
        return Plan(
            net=self.net,
            machine=self.machine,
            launches=tuple(launches),
            strategy=self.strategy,
            params=self.params,
            mean=self.mean,
            seed=self.seed,
            max_error=self.max_error or 0.0,
        )


def forced(patterns: Mapping[str, str], net: Net) -> dict[str, str]:
    """Return the method of every tensor that a pattern names; the last pattern counts."""
    return {
        tensor: method
        for pattern, method in patterns.items()
        for tensor in fnmatch.filter(net.tensors, pattern) or [pattern]
    }
