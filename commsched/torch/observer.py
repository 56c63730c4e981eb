"""Hooks that read the clock while a model computes, and count the bytes that the model keeps."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.net.sparsity import Sparsity
from commsched.run.job.fabric import Middle
from commsched.torch.hooks import Hook
from commsched.torch.parameters import bare_name, no_parameter, trained

LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)  # containers, which are never called
EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Observer:
    """A model's passes on one rank, by module; a with block holds the hooks.

    `clock` may count another quantity than seconds. Hooks inside a compiled module would change the
    compiled code, so the whole module counts as one layer. `turned` is called when the first
    backward pass of a step begins. `experts`: parameter of an expert -> layer of the whole mixture.
    """

    def __init__(
        self,
        model: Any,
        clock: Callable[[], float] = time.perf_counter,
        turned: Callable[[], None] = lambda: None,
        experts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.model, self._clock, self._turned, self.experts = model, clock, turned, experts
        check_takes_hooks(model)
        self.parameters = trained(model)
        if not self.parameters:
            raise no_parameter()
        self.compiled = compiled_modules(model)
        self.owners: dict[str, list[str]] = {}  # layer -> its parameters
        for name in self.parameters:
            self.owners.setdefault(self._layer_of(name), []).append(name)
        first = {id(p): n for n, p in self.parameters.items()}
        self.tied = [
            f"{bare_name(n)} = {first[id(p)]}"
            for n, p in model.named_parameters(remove_duplicate=False)
            if first.get(id(p), bare_name(n)) != bare_name(n)
        ]
        self._embeddings = [
            first[id(m.weight)]
            for m in model.modules()
            if isinstance(m, EMBEDDINGS) and id(m.weight) in first
        ]
        self.activation = dict.fromkeys(self.owners, 0)  # B
        self.output = dict.fromkeys(self.owners, 0)  # B
        self.decay: dict[str, float] = {}  # tensor -> decay of its gradients' magnitudes, if known
        self.laws: dict[str, Sparsity] = {}  # tensor -> law of its gradients' non-zeros, if known
        self.rows: dict[str, list[Array]] = {}  # tensor -> (rows,) of each step, True where hit
        self._forward: list[dict[str, float]] = []  # step: layer -> s
        self._ready: list[dict[str, float]] = []  # step: parameter -> s from the start of backward
        self._outside: list[tuple[float, float]] = []  # step: s of data, s of the optimizer
        self._now: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._hits: dict[str, Array] | None = None  # tensor -> rows that this step has hit
        self._last, self._since, self._begun, self._saved = "", 0.0, 0.0, 0
        self._pause, self.pauses = 0.0, dict[str, float]()  # s of this step's pause before a layer
        self._back = False  # in the backward pass
        self.half = False  # whether an output has 16 bits

    def _layer_of(self, name: str) -> str:
        """Return the module of a parameter, or the outermost compiled module around it."""
        whole = type(self.model).__name__
        if name in self.experts:
            return self.experts[name]
        for outer in self.compiled:
            if not outer or name.startswith(f"{outer}."):
                return outer or whole
        return name.rpartition(".")[0] or whole

    def __enter__(self) -> "Observer":
        modules: dict[str, Any] = {}
        for name, module in self.model.named_modules():  # outer ones first: wrappers
            modules.setdefault(bare_name(name) or type(self.model).__name__, module)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(Hook(self._parameter_hook(name)))
            for name, parameter in self.parameters.items()
        ]
        self._calls: list[Any] = []  # modules whose call is compiled together with the hooks
        for path, layer in self._ends(modules).items():
            module, ended = modules.get(path), self._module_hook(layer)
            if module is None:
                continue
            if module._compiled_call_impl is None:
                self._hooks.append(module.register_forward_hook(Hook(ended)))
            else:
                self._calls.append((module, module._compiled_call_impl))
                module._compiled_call_impl = _then(module, module._compiled_call_impl, ended)
        return self

    def _ends(self, modules: Mapping[str, Any]) -> dict[str, str]:
        """Return the modules at whose ends time is booked, with the layer that gets the time.

        A layer has its own module; a mixture has those of its experts and the caller of their list.
        """
        found = {layer: layer for layer in self.owners}
        for name, layer in self.experts.items():
            found.setdefault(name.rpartition(".")[0], layer)
            if isinstance(modules.get(layer), LISTS):
                found.setdefault(layer.rpartition(".")[0] or type(self.model).__name__, layer)
        return found

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for module, call in self._calls:
            module._compiled_call_impl = call

    def _module_hook(self, layer: str) -> Callable[[Any, Any, Any], None]:
        def ended(module: Any, inputs: Any, output: Any) -> None:
            if self._back:  # recomputed for activation checkpointing: part of backward
                return
            self._charge(layer)
            made = list(tensors_in(output))
            self.output[layer] = sum(t.numel() * t.element_size() for t in made)
            self.half |= any(t.dtype in (torch.bfloat16, torch.float16) for t in made)

        return ended

    def _charge(self, layer: str) -> None:
        """Book the time and the kept bytes since the last module's end to a layer."""
        now = self._clock()
        forward = self._now[0]
        forward[layer] = forward.get(layer, 0.0) + now - self._since
        self.activation[layer] += self._saved
        if self._pause:
            self.pauses.setdefault(layer, self._pause)
            self._pause = 0.0
        self._last, self._since, self._saved = layer, now, 0

    def _parameter_hook(self, name: str) -> Callable[[Any], None]:
        def ready(_: Any) -> None:
            if not self._back:  # the begin of the backward pass was not observed
                self.turn()
            self._now[1][name] = self._clock() - self._begun

        return ready

    def begin(self) -> float:
        """Begin the forward pass of a step; return the time."""
        self._now, self._hits, self._back = ({}, {}), None, False
        self._pause, self.pauses = 0.0, {}
        self._saved, self._last, self._since = 0, "", self._clock()
        return self._since

    def turn(self) -> None:
        """End the forward pass: the time since its last module also belongs to that module."""
        first, self._begun = not self._back, self._clock()
        if first:
            self._charge(self._last or next(iter(self.owners), ""))
            self._back = True
            self._turned()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of a with block out of the forward pass."""
        if self._last:
            self._charge(self._last)
        begun = self._since
        yield
        self._since = self._clock()
        self._pause += self._since - begun

    @property
    def forward_seconds(self) -> dict[str, float]:
        """Return the seconds of this step's forward pass by layer, in the order of their ends."""
        return self._now[0]

    def forward(self, compute: Callable[[], Any], counts_bytes: bool) -> Any:
        """Compute a loss; with `counts_bytes` count the bytes kept for the backward pass."""
        self.begin()
        if counts_bytes:
            own = (part for p in self.model.parameters() for part in _dense_parts(p))
            seen = {part.untyped_storage()._cdata for part in own}
            self.activation = dict.fromkeys(self.owners, 0)

            def pack(tensor: Any) -> Any:
                for part in _dense_parts(tensor):
                    storage = part.untyped_storage()
                    if storage._cdata not in seen:
                        seen.add(storage._cdata)
                        self._saved += part.numel() * part.element_size()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                value = compute()
        else:
            value = compute()
        self._charge(self._last or next(iter(self.owners), ""))
        return value

    def backward(self, loss: Any) -> None:
        """Run the backward pass from a loss."""
        self._back, self._begun = True, self._clock()
        loss.backward()

    def end(self, keeps: bool, data: float, update: float) -> None:
        """Store a step's measurements."""
        if not keeps:
            return
        self._forward.append(self._now[0])
        self._ready.append(self._now[1])
        self._outside.append((data, update))
        for name, hit in (self._hit_rows() if self._hits is None else self._hits).items():
            self.rows.setdefault(name, []).append(hit)

    def note_rows(self) -> None:
        """Record which rows of embeddings this step's gradients hit, before these become means."""
        self._hits = self._hit_rows()

    def _hit_rows(self) -> dict[str, Array]:
        grads = {name: self.parameters[name].grad for name in self._embeddings}
        return {n: _hit(grad) for n, grad in grads.items() if grad is not None and not grad.is_meta}

    @property
    def steps(self) -> int:
        """The number of stored steps."""
        return len(self._outside)

    def forward_of_layers(self, middle: Middle = np.median) -> Array:
        """Return each layer's seconds: (layers,)."""
        return middle([[s.get(k, 0.0) for k in self.owners] for s in self._forward], axis=0)

    def ready(self, middle: Middle = np.median) -> Array:
        """Return when each gradient is ready in backward; NaN: never."""
        found = [[step[n] for step in self._ready if n in step] for n in self.parameters]
        return np.array([float(middle(times)) if times else np.nan for times in found])

    def outside(self, middle: Middle = np.median) -> Array:
        """Return the seconds of data and optimizer: (2,)."""
        return middle(self._outside, axis=0)


def check_takes_hooks(model: Any) -> None:
    """Reject modules of TorchScript."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CommschedError(
                f"module {name or type(model).__name__!r} is TorchScript, which shows no times of"
                " its own; give the model with it as it was before torch.jit.script or trace"
            )


def compiled_modules(model: Any) -> list[str]:
    """Return the names of the outermost modules that torch.compile compiles; "": the model."""
    found: list[str] = []
    for name, module in model.named_modules():
        whole = getattr(module, "_orig_mod", None) is not None  # made by torch.compile(module)
        bare = bare_name(name)
        inside = any(not outer or bare.startswith(f"{outer}.") for outer in found)
        if (whole or module._compiled_call_impl is not None) and not inside:
            found.append(bare)
    return found


def _then(
    module: Any, call: Callable[..., Any], ended: Callable[[Any, Any, Any], None]
) -> Callable[..., Any]:
    """Return a module's compiled call followed by a hook."""

    def called(*inputs: Any, **named: Any) -> Any:
        output = call(*inputs, **named)
        ended(module, inputs, output)
        return output

    return called


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def _dense_parts(tensor: Any) -> tuple[Any, ...]:
    """Return the tensors with storage that make up a tensor: a sparse one has indices, too."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def _hit(gradient: Any) -> Array:
    """Tell which rows of a gradient are not zero: (rows,)."""
    found = np.zeros(len(gradient), bool)
    if gradient.layout is torch.sparse_coo:
        found[gradient.coalesce().indices()[0].cpu().numpy()] = True
        return found
    found[:] = (gradient != 0).flatten(1).any(dim=1).cpu().numpy()
    return found
