"""Conversion between tensors and arrays in the same memory: NumPy's, or CuPy's on a GPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from commsched.arrays import Array
from commsched.errors import CommschedError


def device_of(tensors: Mapping[str, Any]) -> str:
    """Return the device of a model's parameters, "cpu" or "cuda"; reject several devices."""
    if not tensors:
        return "cpu"
    name, first = next(iter(tensors.items()))
    for other, tensor in tensors.items():
        if tensor.device.type not in ("cpu", "cuda"):
            raise CommschedError(
                f"parameter {other!r} lies on {tensor.device}; gradients are summed on cpu and cuda"
            )
        if tensor.device != first.device:
            raise CommschedError(
                f"parameter {other!r} lies on {tensor.device}, and {name!r} on {first.device};"
                " move the model to one device"
            )
    return str(first.device.type)


def check_on_host(tensors: Mapping[str, Any], what: str) -> None:
    """Reject a model on a GPU, whose work the host's clock does not time."""
    if device_of(tensors) != "cpu":
        raise CommschedError(
            f"{what} times the work of models on the cpu; for one on a GPU, plan what"
            " `commsched capture --meta` writes, and use commsched.torch.attach"
        )


def share_stream(tensors: Mapping[str, Any]) -> None:
    """Let CuPy in this thread use PyTorch's GPU and current stream."""
    device = next(iter(tensors.values())).device
    if device.type == "cuda":
        import cupy

        cupy.cuda.Device(device.index).use()
        stream = torch.cuda.current_stream(device).cuda_stream
        (cupy.cuda.ExternalStream(stream) if stream else cupy.cuda.Stream.null).use()


def module_of(tensor: Any) -> Any:
    """Return NumPy, or CuPy for a tensor of a GPU."""
    if tensor.device.type == "cpu":
        return np
    import cupy

    return cupy


def array_of(tensor: Any) -> Array:
    """Return a tensor's memory as an array; on a GPU both must use one stream."""
    return tensor.numpy() if tensor.device.type == "cpu" else module_of(tensor).from_dlpack(tensor)


def tensor_of(array: Array) -> Any:
    """Return an array's memory as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)
