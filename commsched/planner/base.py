"""What every planner is asked, and what is the same for all of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from commsched.errors import CommschedError
from commsched.ir import Graph
from commsched.machine import Group, Machine
from commsched.methods import Direct, Method, find_method, legal_methods, lossy_name
from commsched.plan import Launch, Piece, Plan
from commsched.plan import file as plan_file
from commsched.plan.model import Param
from commsched.registry import Registry
from commsched.strategies import STRATEGIES


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user wants planned."""

    graph: Graph
    machine: Machine
    strategy: str = "sync"
    params: Mapping[str, Param] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()  # lossy codecs and methods that may be used; lossless ones always
    force: Mapping[str, str] = field(default_factory=dict)  # tensor -> method
    bucket: float | None = None  # B; None: the planner's choice
    mean: bool = True
    seed: int = 0

    def methods(self, group: Group) -> Iterator[Method]:
        """The legal methods that this request allows."""
        allowed = {lossy_name(name) for name in self.lossy}
        for method in legal_methods(group, more=self.lossy):
            codec = method.codec.name if isinstance(method, Direct) else method.name
            if method.lossless or codec in allowed:
                yield method


Planner = Callable[[Request], Plan]
PLANNERS: Registry[Planner] = Registry("planner", "commsched.planner")


def make_plan(request: Request, planner: str = "greedy") -> Plan:
    """Plan, and give the plan back as its file will hold it."""
    unknown = [t for t in request.force if t not in request.graph.tensors]
    if unknown:
        raise CommschedError(
            f"no tensor named {unknown[0]!r} in net {request.graph.name!r} to force a method for"
        )
    for name in request.force.values():
        find_method(name)
    for name in request.lossy:
        lossy_name(name)
    plan = PLANNERS[planner](request)
    STRATEGIES[plan.strategy].settings(plan)
    return plan_file.frozen(plan)


def buckets(request: Request, limit: float, first: float | None = None) -> list[list[Piece]]:
    """Fill buckets of at most `limit` bytes with whole tensors in backward order.

    A tensor larger than the limit gets a bucket of its own, and so does a forced one. The first
    bucket may have a smaller limit, so that the exchange begins early (as PyTorch's DDP does).
    """
    found: list[list[Piece]] = []
    room = 0.0
    for layer in reversed(request.graph.layers):
        for tensor in reversed(layer.tensors):
            size = 4.0 * tensor.numel
            alone = tensor.name in request.force
            if alone or size > room or not found:
                found.append([])
                room = first if first is not None and len(found) == 1 else limit
            found[-1].append(Piece(tensor.name, 0, tensor.numel))
            room = 0.0 if alone else room - size
    return found


def ready_after(graph: Graph) -> dict[str, tuple[int, str]]:
    """For each tensor the position and name of its layer."""
    return {
        tensor.name: (position, layer.name)
        for position, layer in enumerate(graph.layers)
        for tensor in layer.tensors
    }


def launches(request: Request, groups: list[list[Piece]], choose: Callable[..., Launch]) -> Plan:
    """A plan with one launch per bucket; `choose(launch)` fills in method and reason."""
    home = ready_after(request.graph)
    spread = request.machine.nodes > 1
    made = []
    for number, pieces in enumerate(groups):
        made.append(
            choose(
                Launch(
                    name=f"b{number}",
                    pieces=tuple(pieces),
                    after=min(home[piece.tensor] for piece in pieces)[1],
                    method=request.force.get(pieces[0].tensor, ""),
                    stream="between" if spread else "inside",
                    priority=number,
                )
            )
        )
    return Plan(
        graph=request.graph,
        machine=request.machine,
        launches=tuple(made),
        strategy=request.strategy,
        params=request.params,
        mean=request.mean,
        seed=request.seed,
    )
