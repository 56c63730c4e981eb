"""A model's parameters by the names that a plan uses, and checks of these parameters."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.plan.model import Plan
from commsched.run.job import agree
from commsched.torch.arrays import array_of, device_of, module_of, tensor_of
from commsched.torch.hooks import all_ours

WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def bare_name(name: str) -> str:
    """Remove the parts that wrappers of a model add to its parameters' names."""
    for word in WRAPPERS:
        name = name.removeprefix(word).replace(f".{word}", ".")
    return name


def trained(model: Any) -> dict[str, Any]:
    """Return the trained parameters by name; tied ones once, by their first name.

    Parameters without elements are left out.
    """
    trains = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
    return _by_bare_name((n, p) for n, p in trains if torch.nn.parameter.is_lazy(p) or p.numel())


def no_parameter() -> CommschedError:
    """Return the error that the model trains no parameter."""
    return CommschedError("the model trains no parameter")


def shape_of(parameter: Any) -> tuple[int, ...]:
    """Return the shape for a net: a parameter without axes gets an axis of size 1."""
    return tuple(parameter.shape) or (1,)


def named_tensors(model: Any) -> dict[str, Any]:
    """Return all parameters and buffers by name, in the order of the names."""
    found = _by_bare_name([*model.named_parameters(), *model.named_buffers()])
    for name, tensor in found.items():
        if tensor.layout is not torch.strided:
            raise CommschedError(
                f"{name!r} is {tensor.layout}, and ranks begin with the dense tensors of"
                " rank 0; make it dense, or an attribute that is no buffer"
            )
    return dict(sorted(found.items()))


def named_buffers(model: Any) -> dict[str, Any]:
    """Return the model's current buffers, in the order of the names."""
    return dict(sorted(_by_bare_name(model.named_buffers()).items()))


def buffers_now(model: Any, attached: Mapping[str, Any]) -> list[Any]:
    """Return the model's current buffers, or those of `attach` where sizes have changed."""
    now = named_buffers(model)
    found = []
    for name, buffer in attached.items():
        new = now.get(name, buffer)
        alike = (new.shape, new.dtype) == (buffer.shape, buffer.dtype)
        found.append(new if alike else buffer)  # a message must have equal sizes on all ranks
    return found


def _by_bare_name(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Reject tensors without a shape, and names that differ only by parts of wrappers."""
    found: dict[str, Any] = {}
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):
            raise CommschedError(
                f"{bare_name(name)!r} has no shape before the model's first forward pass; do one"
                " without gradients first"
            )
        if found.setdefault(bare_name(name), tensor) is not tensor:
            raise CommschedError(
                f"two tensors of the model are named {bare_name(name)!r} without the names of"
                f" wrappers, one of them {name!r}; name the module around them otherwise"
            )
    return found


def check_alike(tensors: Mapping[str, Any], does: str, comm: MPI.Intracomm) -> None:
    """Raise an error if a rank has other tensors than rank 0, or another order."""
    lines = [f"{n!r} of shape {list(t.shape)}, {_dtype(t)}" for n, t in tensors.items()]
    first, *others = (t.split("\n") for t in agree.gather_text("\n".join(lines), comm))
    for rank, found in enumerate(others, 1):
        for mine, theirs in zip([*first, "nothing"], [*found, "nothing"], strict=False):
            if mine != theirs:
                raise Agreed(f"rank {rank} {does} {theirs} where rank 0 {does} {mine}")


def check_kind(name: str, parameter: Any) -> None:
    """Reject a parameter whose gradient cannot be handed over."""
    if parameter.dtype not in DTYPES:
        known = ", ".join(DTYPES.values())
        raise CommschedError(
            f"parameter {name!r} is {_dtype(parameter)}; what can be summed is {known}"
        )


def check_fits(parameters: Mapping[str, Any], plan: Plan, some_unused: bool) -> None:
    """Reject a plan that does not average, and a model whose parameters differ from its tensors."""
    net = plan.net
    if not plan.mean and any(launch.payload == "gradient" for launch in plan.launches):
        raise CommschedError("the plan sums gradients, but .grad holds means; plan without --sum")
    again = f"capture this model and plan again, the plan is for net {net.name!r}"
    for name, tensor in net.tensors.items():
        if name not in parameters:
            raise CommschedError(f"the model trains no parameter {name!r}; {again}")
        if shape_of(parameters[name]) != tensor.shape:
            got, want = list(shape_of(parameters[name])), list(tensor.shape)
            raise CommschedError(f"parameter {name!r} has shape {got}, in the plan {want}; {again}")
        check_kind(name, parameters[name])
    device_of(parameters)
    missing = next((name for name in parameters if name not in net.tensors), None)
    if missing is not None and not some_unused:
        raise CommschedError(f"the plan has no tensor {missing!r}, which the model trains; {again}")


def check_attached(model: Any, updates: list[Any], attached: set[int], rank: int) -> None:
    """Raise an error if an update uses a gradient that no hook of `attach` has seen."""
    others = {id(p) for p in updates if p.grad is not None} - attached
    if not others:
        return
    for name, parameter in model.named_parameters():
        if id(parameter) in others and parameter.numel():
            raise CommschedError(
                f"rank {rank}: parameter {bare_name(name)!r} has a gradient that is not averaged:"
                " at attach it was frozen, or not in the model; capture the model as it is now,"
                " plan and attach again"
            )


def why_second(missing: list[str], some_unused: bool) -> str:
    """Describe the arrival of a second gradient, and what a script can do about it."""
    failed = "after an exception in a backward pass close the exchange, and attach again"
    if some_unused or not missing:
        return f"gradient before the backward pass of the first one ended; {failed}"
    return (
        f"gradient before {missing[0]!r} got one; put all backward passes but the last into"
        f" sync.no_sync(), or attach with find_unused_parameters=True; {failed}"
    )


def unplanned(name: str, where: str = "") -> CommschedError:
    """Return the error that a parameter has a gradient but the plan no such tensor."""
    return CommschedError(
        f"{where}parameter {name!r} got a gradient, but the plan has no such tensor; capture this"
        " model and plan again"
    )


def sparse_embeddings(model: Any) -> list[Any]:
    """Return the parameters with gradients of rows: used in one module only, by `sparse=True`."""
    held = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    some = [m.weight for m in model.modules() if getattr(m, "sparse", False) is True]
    return [weight for weight in some if held[id(weight)] == 1]


def handed_over(name: str, gradient: Any) -> Any:
    """Return a gradient in the form for an Exchanger: an array, or rows and their values."""
    if gradient.layout is torch.strided:
        return dense_array(name, gradient)
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        raise CommschedError(
            f"parameter {name!r} has a gradient of layout {gradient.layout} that is no list of"
            " rows; what can be summed is dense, or rows as of Embedding(sparse=True)"
        )
    # Few torch calls: after each call another thread may run Python first.
    rows, values = gradient._indices(), gradient._values()
    if values.requires_grad or values.dtype is not torch.float32:
        values = values.detach().float()
    return array_of(rows)[0], array_of(values)


def no_gradient(parameter: Any, rows: bool) -> Any:
    """Return the zeros that a rank hands over for a parameter that it did not use."""
    module = module_of(parameter)
    if rows:
        return module.zeros(0, np.int64), module.zeros((0, *shape_of(parameter)[1:]), np.float32)
    return module.broadcast_to(module.zeros((), np.float32), shape_of(parameter))


def put_mean(parameter: Any, mean: Any, overflow: bool) -> None:
    """Set `.grad` to a mean, or to infinity after an overflow; rows become a sparse tensor.

    On the host `.grad` uses the mean's own memory, to which the next gradient may be added, if the
    parameter is float32 and contiguous and the user has no hook on it; else the mean is copied.
    """
    if isinstance(mean, tuple):
        rows, values = mean
        if overflow:
            module = module_of(parameter)
            rows = module.zeros(1, np.int64)
            values = module.full((1, *values.shape[1:]), np.inf, np.float32)
        values = tensor_of(values)
        if parameter.dtype is not torch.float32:
            values = values.to(parameter.dtype)
        parameter.grad = torch.sparse_coo_tensor(
            tensor_of(rows[np.newaxis]),
            values,
            parameter.shape,
            check_invariants=False,
            is_coalesced=True,
        )
        return
    lends = isinstance(mean, np.ndarray) and all_ours(parameter)
    mean = tensor_of(mean)
    if not parameter.ndim:
        mean = mean.view(())
    if parameter.dtype is torch.float32 and parameter.is_contiguous() and lends:
        parameter.grad = mean
    elif parameter.grad is None:
        parameter.grad = torch.empty_like(parameter).copy_(mean)
    else:
        parameter.grad.copy_(mean)
    if overflow:
        parameter.grad.fill_(float("inf"))


def dense_array(name: str, gradient: Any) -> Any:
    """Return a gradient as an array of float32; a view of its memory if it is float32."""
    if gradient.requires_grad:  # if autograd keeps the graph; a torch call takes 2 us
        gradient = gradient.detach()
    if gradient.dtype is torch.float32 and gradient.layout is torch.strided and gradient.ndim:
        return array_of(gradient)
    if gradient.layout is not torch.strided:
        raise CommschedError(
            f"parameter {name!r} has a sparse gradient ({gradient.layout}), and buckets of"
            " DistributedDataParallel are dense; use commsched.torch.attach, or sparse=False"
        )
    return array_of(gradient.float().reshape(tuple(gradient.shape) or (1,)))


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")
