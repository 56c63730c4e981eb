"""A model's parameters by the names that a plan has for them, and what of them is refused."""

from collections.abc import Mapping
from typing import Any

import torch

from commsched.errors import CommschedError
from commsched.plan.model import Plan

WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def bare_name(name: str) -> str:
    """Leave out what wrappers of a model put before or into its parameters' names."""
    for word in WRAPPERS:
        name = name.removeprefix(word).replace(f".{word}", ".")
    return name


def trained(model: Any) -> dict[str, Any]:
    """Return the parameters that are trained by name; tied ones once, by their first name."""
    return {bare_name(n): p for n, p in model.named_parameters() if p.requires_grad}


def shape_of(parameter: Any) -> tuple[int, ...]:
    """Return the shape that a net states: a parameter without axes has one of size 1."""
    return tuple(parameter.shape) or (1,)


def check_kind(name: str, parameter: Any) -> None:
    """Refuse a parameter whose gradient cannot be handed over."""
    if parameter.dtype not in DTYPES:
        known = ", ".join(DTYPES.values())
        raise CommschedError(
            f"parameter {name!r} is {_dtype(parameter)}; what can be summed is {known}"
        )
    if parameter.device.type != "cpu":
        raise CommschedError(
            f"parameter {name!r} lies on {parameter.device}; attach takes parameters on the cpu"
        )


def check_fits(parameters: Mapping[str, Any], plan: Plan, some_unused: bool) -> None:
    """Refuse a plan that does not average, or a model whose parameters are not its tensors."""
    net = plan.net
    if not plan.mean:
        raise CommschedError("the plan sums gradients, but .grad holds means; plan without --sum")
    again = f"capture this model and plan again, the plan is for net {net.name!r}"
    for name, tensor in net.tensors.items():
        if name not in parameters:
            raise CommschedError(f"the model trains no parameter {name!r}; {again}")
        if shape_of(parameters[name]) != tensor.shape:
            got, want = list(shape_of(parameters[name])), list(tensor.shape)
            raise CommschedError(f"parameter {name!r} has shape {got}, in the plan {want}; {again}")
        check_kind(name, parameters[name])
    missing = next((name for name in parameters if name not in net.tensors), None)
    if missing is not None and not some_unused:
        raise CommschedError(f"the plan has no tensor {missing!r}, which the model trains; {again}")


def dense_array(name: str, gradient: Any) -> Any:
    """Return a gradient as a NumPy array of float32; a view of its memory if it is float32."""
    if gradient.dtype is torch.float32 and gradient.layout is torch.strided and gradient.ndim:
        return gradient.detach().numpy()
    if gradient.layout is not torch.strided:
        raise CommschedError(
            f"parameter {name!r} has a sparse gradient ({gradient.layout}); use sparse=False: the"
            " plan's codec finds the rows that are not zero"
        )
    return gradient.detach().float().reshape(tuple(gradient.shape) or (1,)).numpy()


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")
