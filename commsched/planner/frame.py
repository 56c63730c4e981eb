"""What is the same for all planners: who they are, their frame, and whole-tensor buckets."""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net
from commsched.plan import file as plan_file
from commsched.plan.model import Launch, Plan
from commsched.planner import validate_request as wishes
from commsched.planner.limits import error_budget as guard
from commsched.planner.limits.memory import fits, fitting, refusal
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.registry import Registry

Planner = Callable[[Request], Plan]
PLANNERS: Registry[Planner] = Registry(
    "planner", "commsched.planner.baselines", "commsched.planner.search"
)
# How plans of a strategy are made where not by a planner alone; the planner is there to be asked.
FRAMES: Registry[Callable[[Request, Planner], Plan]] = Registry("frame", "commsched.planner.frames")
DEFAULT = "best"


def make_plan(request: Request, planner: str = DEFAULT) -> Plan:
    """Plan, and give the plan back as its file will hold it."""
    wishes.check(request)
    guard.check(request)
    if planner not in PLANNERS:
        near, known = wishes.close(planner, PLANNERS), ", ".join(PLANNERS)
        raise CommschedError(f"no planner named {planner!r}{near}; known: {known}")
    strategy = STRATEGIES[request.strategy]
    nothing = Plan(graph=request.graph, machine=request.machine, launches=(), params=request.params)
    settings = strategy.settings(nothing)
    request = replace(request, params={key: settings[key] for key in request.params})
    if request.strategy in FRAMES:
        if request.max_error is not None:
            raise CommschedError(
                f"--max-error is for strategy 'sync'; strategy {request.strategy!r} plans without"
                " it"
            )
        plan = FRAMES[request.strategy](request, PLANNERS[planner])
    elif request.memory is not None and planner == DEFAULT:
        plan = fitting(request, PLANNERS[planner])
    else:
        plan = PLANNERS[planner](request)
    strategy.lower(plan, 0, {})
    if request.memory is not None and not fits(request, plan):
        raise refusal(request, plan)
    guard.check_plan(request, plan)
    return plan_file.frozen(plan)


def buckets(request: Request, limit: float, first: float | None = None) -> list[list[Piece]]:
    """Fill buckets of at most `limit` bytes with whole tensors in backward order.

    A tensor larger than the limit gets a bucket of its own, and so does a forced one. The first
    bucket may have a smaller limit, so that the exchange begins early (as PyTorch's DDP does).
    """
    return filled(request.graph.layers, limit, first, request.force)


def filled(
    layers: Sequence[Layer], limit: float, first: float | None, forced: Container[str]
) -> list[list[Piece]]:
    """The same for some layers, in forward order."""
    found: list[list[Piece]] = []
    room = 0.0
    for layer in reversed(layers):
        for tensor in reversed(layer.tensors):
            size = 4.0 * tensor.numel
            alone = tensor.name in forced
            if alone or size > room or not found:
                found.append([])
                room = first if first is not None and len(found) == 1 else limit
            found[-1].append(Piece(tensor.name, 0, tensor.numel))
            room = 0.0 if alone else room - size
    return found


def ready_after(graph: Net) -> dict[str, tuple[int, str]]:
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
        max_error=request.max_error or 0.0,
    )
