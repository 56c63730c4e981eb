"""What the user wants planned, and which methods that allows."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from commsched.errors import CommschedError
from commsched.ir import Graph
from commsched.machine import Group, Machine
from commsched.methods import Direct, Method, find_method, legal_methods, lossy_name
from commsched.methods.recorded import Recorded
from commsched.plan import BucketSpec, Piece
from commsched.plan.model import Param

Report = Callable[[str, float], None]  # what was done, and s of the best iteration so far


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user wants planned."""

    graph: Graph
    machine: Machine
    strategy: str = "sync"
    params: Mapping[str, Param] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()  # lossy codecs and methods that may be used; lossless ones always
    max_error: float | None = None  # that a lossy method may leave in a step; None: any
    small: bool = False  # with max_error: biases, norms and small tensors may lose something too
    recorded: Recorded | None = None  # gradients to measure errors on; None: drawn ones
    lossless: bool = False  # refuse a forced method that loses something
    force: Mapping[str, str] = field(default_factory=dict)  # tensor -> method
    bucket: float | None = None  # B; None: the planner's choice
    memory: float | None = None  # B per rank; None: no limit
    mean: bool = True
    seed: int = 0
    time_limit: float | None = None  # s of search; None: until nothing helps
    report: Report | None = None  # called with every better plan

    def methods(self, group: Group) -> Iterator[Method]:
        """The legal methods that this request allows."""
        allowed = {lossy_name(name) for name in self.lossy}
        for method in legal_methods(group, more=self.lossy):
            codec = method.codec.name if isinstance(method, Direct) else method.name
            if method.lossless or codec in allowed:
                yield method

    def check(self) -> None:
        """Refuse wishes that nothing can fulfil, with the nearest that can hold."""
        tensors = self.graph.tensors
        for name, wanted in self.force.items():
            if name not in tensors:
                near = get_close_matches(name, tensors, 1, 0.0)
                raise CommschedError(
                    f"no tensor named {name!r} in net {self.graph.name!r} to force a method for;"
                    f" nearest: {near[0]!r}"
                )
            method = find_method(wanted)
            if self.lossless and not method.lossless:
                raise CommschedError(
                    f"tensor {name!r}: method {wanted!r} loses something and only lossless ones"
                    f" are wanted; nearest: {self._nearest(wanted)!r}"
                )
            spec = BucketSpec.of((Piece(name, 0, tensors[name].numel),), tensors)
            try:
                method.phases(spec, self.machine.everyone)
            except CommschedError as error:
                raise CommschedError(f"tensor {name!r}: method {wanted!r}: {error}") from None
        for name in self.lossy:
            lossy_name(name)
        if self.time_limit is not None and not 0 <= self.time_limit < math.inf:
            raise CommschedError(
                f"the time limit must be finite and at least 0 s, got {self.time_limit}"
            )

    def _nearest(self, wanted: str) -> str:
        """A lossless method of the same collective, or any; dense values rather than others."""
        names = [m.name for m in legal_methods(self.machine.everyone, lossless=True)]
        collective = wanted.partition("+")[0]
        same = [name for name in names if name.partition("+")[0] == collective]
        plain = [name for name in same or names if name.endswith("+dense")]
        return (plain or same or names)[0]
