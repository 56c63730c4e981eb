"""The broadcast of rank 0's parameters and buffers, and an exchange's state for torch.save."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from commsched.arrays import Array
from commsched.torch.arrays import array_of, tensor_of

CHUNK = 2**28  # B of one message, far below MPI's limit of counts


def broadcast(tensors: Iterable[Any], comm: MPI.Comm) -> None:
    """Copy tensors of rank 0 to all ranks, in place, in messages of many tensors."""
    together: list[Any] = []
    for tensor in filter(torch.numel, tensors):
        together.append(tensor.detach())
        if sum(t.numel() * t.element_size() for t in together) >= CHUNK:
            _broadcast(together, comm)
            together = []
    if together:
        _broadcast(together, comm)


def _broadcast(tensors: list[Any], comm: MPI.Comm) -> None:
    parts = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    data = torch.cat([part.cpu() for part in parts]).numpy()
    for start in range(0, len(data), CHUNK):
        comm.Bcast(data[start : start + CHUNK], 0)
    if comm.rank:
        sizes = [len(part) for part in parts]
        for tensor, got in zip(tensors, torch.from_numpy(data).split(sizes), strict=True):
            _put(tensor, got.clone().view(tensor.dtype).reshape(tensor.shape))


def _put(tensor: Any, values: Any) -> None:
    """Copy values into a tensor; along an expanded axis only the first element is written."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    for axis, step in enumerate(strides):
        if step == 0 and tensor.shape[axis]:
            tensor, values = tensor.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    tensor.copy_(values)


HELD = ("_buffers", "_non_persistent_buffers_set", "_modules")  # attributes of a module


class Buffers:
    """A snapshot of a model's buffers and modules, which a forward pass may change or add."""

    def __init__(self, model: Any) -> None:
        held = ((m, key, getattr(m, key)) for m in model.modules() for key in HELD)
        self._of_modules = [(m, key, now, now.copy()) for m, key, now in held]
        self._values = [(b, b.data, b.detach().clone()) for b in model.buffers()]
        self._names = {name for name, _ in model.named_buffers(remove_duplicate=False)}

    def leave_out(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a model's state without buffers, but with the modules' versions."""
        for name in self._names & state.keys():
            del state[name]
        return state

    def restore(self) -> None:
        """Restore the buffers and modules of the snapshot, with their values."""
        for module, key, now, before in self._of_modules:
            now.clear()
            now.update(before)
            setattr(module, key, now)  # a script may have replaced it
        for buffer, data, values in self._values:
            buffer.data = data  # of the same size and type
            _put(data, values)


class Elements:
    """A view of a parameter as slices of float32 elements, which can be read and assigned."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    def __getitem__(self, there: slice) -> Array:
        return array_of(self._parameter.detach().reshape(-1)[there].float())

    def __setitem__(self, there: slice, values: Array) -> None:
        parameter = self._parameter.detach()
        flat = parameter.reshape(-1)  # a copy if the parameter is not contiguous
        flat[there] = tensor_of(values)
        if flat.data_ptr() != parameter.data_ptr():
            parameter.copy_(flat.view(parameter.shape))


def as_tensors(value: Any) -> Any:
    """Turn arrays in nested dictionaries and tuples into tensors with memory of their own."""
    if isinstance(value, dict):
        return {key: as_tensors(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(as_tensors(part) for part in value)
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def as_arrays(value: Any) -> Any:
    """Turn tensors in nested dictionaries and tuples into arrays with memory of their own."""
    if isinstance(value, dict):
        return {key: as_arrays(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(as_arrays(part) for part in value)
    return value.detach().cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
