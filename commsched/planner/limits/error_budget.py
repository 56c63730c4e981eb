"""The error budget: which lossy methods a bucket may have, according to measured errors."""

from collections.abc import Iterable, Sequence

import numpy as np

from commsched.arrays import Bools
from commsched.errors import CommschedError
from commsched.exchange.error import error, is_small
from commsched.exchange.method import Method
from commsched.exchange.registry import METHODS, find_method
from commsched.net.graph import Tensor
from commsched.plan.model import Plan
from commsched.planner.request import Request
from commsched.planner.space import Bucket, Unit
from commsched.planner.validate_request import nearest_method


class ErrorBudget:
    """The methods that a request's `max_error` and `small` allow for each tensor."""

    def __init__(self, request: Request) -> None:
        self._budget = request.max_error
        self._small = request.small
        self._request = request
        self._tensors = request.net.tensors
        self._force = request.force
        self._known: dict[tuple[Unit, str], bool] = {}

    @property
    def active(self) -> bool:
        """Tell whether there is a budget."""
        return self._budget is not None

    def allows(self, method: Method, made: Bucket) -> bool:
        """Tell whether every tensor of a bucket may have a method."""
        return method.lossless or all(self._unit(method, unit) for unit in made.units)

    def units(self, method: Method, units: Sequence[Unit]) -> Bools:
        """Tell for each unit whether it may have a method: (units,)."""
        return np.array([method.lossless or self._unit(method, unit) for unit in units], np.bool_)

    def _unit(self, method: Method, unit: Unit) -> bool:
        key = unit, method.name
        if key not in self._known:
            names = {piece.tensor for piece in unit.pieces}
            self._known[key] = all(self.tensor(method, self._tensors[name]) for name in names)
        return self._known[key]

    def tensor(self, method: Method, tensor: Tensor) -> bool:
        """Tell whether a tensor may have a method."""
        if self._budget is None or method.lossless or self._force.get(tensor.name) == method.name:
            return True
        if not self._small and is_small(tensor.shape):
            return False
        return loss(self._request, method, tensor) <= self._budget


def loss(request: Request, method: Method, tensor: Tensor) -> float:
    """Return a method's error on the recorded gradients of a tensor, or else on random ones."""
    if request.recorded is not None and tensor.name in request.recorded.gradients:
        return request.recorded.error(method, tensor)
    return error(method, tensor.sparsity, tensor.numel, tensor.decay)


def measured_on(request: Request, tensor: Tensor) -> str:
    """Describe the gradients on which the errors of a tensor are measured."""
    if request.recorded is not None and tensor.name in request.recorded.gradients:
        count = len(request.recorded.gradients[tensor.name])
        return f"{count} recorded gradients of {request.recorded.where}"
    return "gradients drawn with the measured decay" if tensor.decay else "drawn gradients"


def check(request: Request) -> None:
    """Reject an invalid error budget, and forced methods that exceed it."""
    budget = request.max_error
    if budget is None:
        return
    if not 0.0 <= budget < np.inf:
        raise CommschedError(
            f"--max-error must be a finite share of at least 0, got {budget}; 0.1 lets a tensor"
            " leave a tenth of its norm behind in a step"
        )
    for name, wanted in request.force.items():
        tensor, method = request.net.tensors[name], find_method(wanted)
        found = loss(request, method, tensor)
        if found <= budget:
            continue
        inside, least = nearest(request, tensor)
        near = inside if inside in METHODS else nearest_method(request, wanted, inside)
        why = (
            f"leaves a relative error of {found:.2g} in a step on {measured_on(request, tensor)}"
            if np.isfinite(found)
            else "has a momentum of its own, so that its error cannot be told"
        )
        raise CommschedError(
            f"--force {name}={wanted}: the method {why}, but --max-error allows {budget:g};"
            f" nearest: {near!r} with {least:.2g}"
        )
    methods, guard = [*request.methods(request.machine.everyone)], ErrorBudget(request)
    if any(method.lossless for method in methods):
        return
    for name, tensor in request.net.tensors.items():
        if name not in request.force and not any(guard.tensor(m, tensor) for m in methods):
            small = "--allow-small, or " if is_small(tensor.shape) and not request.small else ""
            raise CommschedError(
                f"no allowed method keeps tensor {name!r} within --max-error {budget:g}; nearest:"
                f" {small}a lossless method, too, such as --method ring+dense"
            )


def nearest(request: Request, tensor: Tensor) -> tuple[str, float]:
    """Return the allowed lossy codec or method of the largest error, or else a lossless one."""
    assert request.max_error is not None
    inside = [(e, name) for name, e in errors(request, tensor) if e <= request.max_error]
    found = max(inside, default=(0.0, "dense"))
    return found[1], found[0]


def errors(request: Request, tensor: Tensor) -> Iterable[tuple[str, float]]:
    """Yield the lossy codecs and methods that the request allows, with their errors."""
    seen = set()
    for method in request.methods(request.machine.everyone):
        if not method.lossless and method.coding not in seen:
            seen.add(method.coding)
            yield method.coding, loss(request, method, tensor)


def verdict(request: Request) -> list[str]:
    """Describe the error budget: each allowed codec's error on the largest tensor.

    The text also names the gradients on which the errors were measured.
    """
    if request.max_error is None or not request.net.tensors:
        return []
    tensors = request.net.tensors.values()
    tensor = max(tensors, key=lambda t: t.numel)
    found = [
        f"{name} {e:.2g}{'' if e <= request.max_error else ' (too much)'}"
        for name, e in errors(request, tensor)
    ]
    shown = ", ".join(found) or "no lossy codec is allowed"
    where = measured_on(request, tensor)
    start = f"error per step on {tensor.name}, at most {request.max_error:g}, on {where}"
    lines = [f"{start}: {shown}"]
    if request.recorded is not None and len(request.recorded.gradients) < len(tensors):
        missing = len(tensors) - len(request.recorded.gradients)
        lines.append(f"{missing} of {len(tensors)} tensors were not recorded: on drawn gradients")
    return lines


def check_plan(request: Request, plan: Plan) -> None:
    """Refuse a plan that exceeds the budget; planners of other systems know no budgets."""
    guard = ErrorBudget(request)
    for launch in plan.launches:
        method = find_method(launch.method)
        for piece in launch.pieces:
            if not guard.tensor(method, plan.net.tensors[piece.tensor]):
                raise CommschedError(
                    f"planner {plan.planner!r} gives tensor {piece.tensor!r} method"
                    f" {launch.method!r}, which --max-error {request.max_error:g} does not allow;"
                    " nearest: planner 'best'"
                )
