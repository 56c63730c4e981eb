"""`commsched.torch.model_work`: a net of a model from shapes alone, without running the model."""

import traceback
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

from commsched.errors import CommschedError
from commsched.net.graph import Layer, Net
from commsched.torch.capture import check_batch, check_batches, check_loss
from commsched.torch.captured_net import chained, tensor_of, used_parameters
from commsched.torch.observer import Observer, tensors_in
from commsched.torch.parameters import no_parameter, trained

NOTE = (
    "commsched capture --meta: flops of matrix products, convolutions and attention as"
    " torch.utils.flop_counter counts them; memory traffic: inputs and outputs of each operator"
    " that is no view; nothing here is measured"
)
SILENT = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach")


class WorkCounter(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that counts the work of all operators in a with block."""

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.nbytes = 0.0, 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count an operator's work, and call the operator."""
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet is torch.ops.aten.convolution_backward:
            self.flops += _flops_of_convolution_backward(*args)
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=made)
        if not func.is_view and packet.__name__ not in SILENT:
            values = chain(tensors_in(args), tensors_in(kwargs), tensors_in(made))
            self.nbytes += sum(t.numel() * t.element_size() for t in values)
        return made


def _flops_of_convolution_backward(gradient: Any, inputs: Any, weight: Any, *options: Any) -> float:
    """Return the forward's flops for each requested gradient, of the input and of the weight.

    torch.utils.flop_counter counts a grouped weight's gradient once for every group.
    """
    transposed, asked = options[4], options[-1]
    forward = conv_flop_count(inputs.shape, weight.shape, gradient.shape, transposed)
    return float(forward * sum(asked[:2]))


def model_work(
    build: Callable[[], tuple[Any, ...]],
    *,
    name: str = "modelled",
    batch: int | None = None,
    find_unused_parameters: bool = False,
) -> Net:
    """Return the net of a model with the flops and bytes of each layer, without computing.

    `build` returns (model, loss, optimizer, batches), as for capture. It runs on the meta device,
    whose tensors have shapes but no values, so that models of any size fit. Layers and their order
    are those of `capture`. On this device attention is matrix products and a softmax, so its memory
    traffic is that of unfused attention.
    """
    check_batch(batch)
    try:
        with torch.device("meta"):
            model, loss, _, batches = build()
            trained(model)  # raises an error for parameters without a shape, which `to` would empty
            model = model.to("meta")
            first = _on_meta(_first(batches))
            work = WorkCounter()
            traffic = _observed(model, loss, first, work, lambda: work.nbytes)
            flops = _observed(model, loss, first, work, lambda: work.flops)
    except CommschedError:
        raise
    except Exception as error:
        traceback.print_exc()
        said = (str(error).splitlines() or [""])[0]
        raise CommschedError(
            f"the script needs values, which the meta device has not: {type(error).__name__}:"
            f" {said}; capture it without --meta"
        ) from None
    size = next((len(t) for t in tensors_in(first) if t.ndim), 1)
    return _net(traffic, flops, name, batch or size, find_unused_parameters)


def _first(batches: Iterable[Any]) -> Any:
    check_batches(batches)
    found = next(iter(batches), None)
    if found is None:
        raise CommschedError("there are no batches to train on")
    return found


def _on_meta(value: Any) -> Any:
    """Return nested lists, tuples and dictionaries with tensors on the meta device."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), value)


def _observed(
    model: Any,
    loss: Callable[[Any], Any],
    batch: Any,
    work: WorkCounter,
    clock: Callable[[], float],
) -> Observer:
    """Observe a forward and a backward pass by a clock that counts work."""
    observer = Observer(model, clock)
    model.zero_grad(set_to_none=True)
    with observer, work:
        value = observer.forward(lambda: loss(batch), counts_bytes=True)
        check_loss(value)
        observer.backward(value)
        observer.end(keeps=True, data=0.0, update=0.0)
    return observer


def _net(traffic: Observer, flops: Observer, name: str, batch: int, some_unused: bool) -> Net:
    """Make layers in the order of gradients by moved bytes, because every operator moves some."""
    used = used_parameters(traffic, traffic.ready(), some_unused)
    order, moved = chained(traffic, traffic.ready(), used)
    _, worked = chained(flops, flops.ready(), used, order)
    passed = dict(zip(traffic.owners, traffic.forward_of_layers(), strict=True))
    computed = dict(zip(flops.owners, flops.forward_of_layers(), strict=True))
    layers = tuple(
        Layer(
            name=layer,
            after=order[place - 1 : place] if place else (),
            forward_flops=float(computed[layer]),
            backward_flops=float(worked[layer]),
            forward_bytes=float(passed[layer]),
            backward_bytes=float(moved[layer]),
            activation=float(traffic.activation[layer]),
            output=float(traffic.output[layer]),
            tensors=tuple(tensor_of(traffic, n) for n in used[layer]),
        )
        for place, layer in enumerate(order)
    )
    if not layers:
        raise no_parameter()
    return Net(name=name, layers=layers, batch=batch, source=NOTE)
