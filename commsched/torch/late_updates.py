"""Updates under the next forward pass: parameters change just before the module that reads them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from commsched.errors import CommschedError
from commsched.torch.hooks import Hook
from commsched.torch.observer import compiled_modules, tensors_in


class LateUpdates:
    """An optimizer whose step is done in parts, each before the module that reads its parameters.

    The first forward pass in training mode is watched: a parameter belongs to the innermost module
    whose forward was running when the parameter was first read. Parameters not read there may be
    read at any time, so the optimizer's step itself updates these. All parameters are updated
    before a forward pass in evaluation mode, and before a forward pass of a part of the model.
    `take(name)` puts a parameter's mean into `.grad`; `check()` is called when a step begins.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        parameters: Mapping[str, Any],
        take: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        _check(model, optimizer, parameters)
        self._model, self._optimizer, self._parameters = model, optimizer, parameters
        self._take, self._check = take, check
        self.around: Callable[[], Any] = _nothing  # a with block around updates in a forward pass
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._waiting: set[str] = set()  # means under way
        self._deferred = False  # whether the optimizer's step was called for the waiting means
        self._rates: list[dict[str, Any]] = []  # options of each group at that call
        self._first: dict[str, Any] | None = None  # parameter -> module that reads it first
        self._running, self._mode = [model], _Reads(self)  # running modules, the innermost last
        self._update = partial(type(optimizer).step.__wrapped__, optimizer)
        self._step = optimizer.step

        @wraps(self._step)
        def step(_: Any, closure: Callable[[], Any] | None = None) -> None:
            self._defer(closure)

        optimizer.step = MethodType(step, optimizer)  # learning rate schedulers wrap methods
        self._stale: set[str] = set()  # parameters that the last forward pass did not update
        self._outer: list[Any] = [model.register_forward_pre_hook(Hook(self._begin))]
        self._inside = False  # within a forward pass of the model
        self._outer.append(model.register_forward_hook(Hook(self._end), always_call=True))
        flush, alone = Hook(self._flush_first), Hook(self._flush_alone)
        for each in (*model.modules(), optimizer):
            self._outer.append(each.register_state_dict_pre_hook(flush))
            self._outer.append(each.register_load_state_dict_pre_hook(flush))
        for module in model.modules():
            if module is not model:
                self._outer.append(module.register_forward_pre_hook(alone))
        self._inner: list[Any] = []

    def begin(self) -> None:
        """Record that a step's means are under way."""
        self._waiting, self._deferred = set(self._parameters), False
        for parameter in self._parameters.values():
            parameter.grad = None

    def flush(self) -> None:
        """Finish the last step, before gradients of the next one are handed over."""
        if self._waiting and not self._deferred:
            raise CommschedError(
                "with update_in_forward each backward pass is followed by optimizer.step(); put all"
                " backward passes but the last into sync.no_sync()"
            )
        self._stale = set(self._waiting)
        for name in self._stale:
            if self._parameters[name].grad is not None:
                self.check(name)
        self._apply(self._parameters)

    def check(self, name: str) -> None:
        """Raise an error if a parameter with a gradient was read before its update."""
        if name in self._stale:
            raise CommschedError(
                f"parameter {name!r} was read by another module than in the first forward pass;"
                " update_in_forward is for models that read their parameters in the same places"
            )

    def close(self) -> None:
        """Finish the last step, and restore the optimizer's own `step`."""
        if self._deferred:
            self._apply(self._parameters)
        self._optimizer.step = self._step
        for hook in (*self._outer, *self._inner):
            hook.remove()

    def _flush_first(self, *_: Any) -> None:
        if self._deferred:
            self._apply(self._parameters)

    def _flush_alone(self, *_: Any) -> None:
        """Update all parameters before a module that is called outside the model and backward."""
        if not self._inside and torch._C._current_graph_task_id() == -1:
            self._flush_first()

    def _end(self, model: Any, inputs: Any, output: Any) -> None:
        self._inside = False

    def _defer(self, closure: Callable[[], Any] | None = None) -> None:
        """Replace the optimizer's step: only record the call."""
        self._optimizer._opt_called = True  # schedulers check this
        if closure is not None:
            raise CommschedError("update_in_forward: optimizer.step() must have no closure")
        self._check()
        if not self._waiting:
            return
        groups = self._optimizer.param_groups
        self._rates = [{k: _now(v) for k, v in g.items() if k != "params"} for g in groups]
        self._group_of = {id(p): i for i, g in enumerate(groups) for p in g["params"]}
        self._deferred = True
        read = self._first or {}
        self._apply([name for name in self._parameters if name not in read])

    def _apply(self, names: Iterable[str]) -> None:
        """Wait for the means of parameters, and update these."""
        chosen = [name for name in names if name in self._waiting]
        if not chosen:
            return
        groups: dict[int, list[Any]] = {}
        with torch.no_grad():
            for name in chosen:
                self._take(name)
                parameter = self._parameters[name]
                groups.setdefault(self._group_of[id(parameter)], []).append(parameter)
            optimizer, whole = self._optimizer, self._optimizer.param_groups
            optimizer.param_groups = [{**self._rates[i], "params": p} for i, p in groups.items()]
            try:
                self._update()
            finally:
                optimizer.param_groups = whole
        for name in chosen:
            self._parameters[name].grad = None
        self._waiting.difference_update(chosen)

    def _begin(self, model: Any, inputs: Any) -> None:
        """Update parameters that no inner module reads first; watch the first training forward."""
        trains, self._inside = model.training and torch.is_grad_enabled(), True
        if self._first is None and trains:
            self._watch()
        elif self._deferred:
            first = self._first if trains and self._first is not None else {}
            with self.around():
                self._apply([n for n in self._parameters if first.get(n, model) is model])

    def _watch(self) -> None:
        """Record which module reads each parameter first."""
        self._first, self._running = {}, [self._model]
        for module in self._model.modules():
            if module is not self._model:
                self._inner.append(module.register_forward_pre_hook(Hook(self._enter)))
                leave = Hook(self._leave)
                self._inner.append(module.register_forward_hook(leave, always_call=True))
        self._inner.append(self._model.register_forward_hook(Hook(self._watched), always_call=True))
        self._mode.__enter__()

    def _enter(self, module: Any, inputs: Any) -> None:
        self._running.append(module)

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self._running.pop()

    def read(self, tensor: Any) -> None:
        """Record that a tensor is read."""
        name = self._names.get(id(tensor))
        if name is not None and self._first is not None:
            self._first.setdefault(name, self._running[-1])

    def _watched(self, model: Any, inputs: Any, output: Any) -> None:
        """From now on update parameters before the module that reads them first."""
        self._mode.__exit__(None, None, None)
        for hook in self._inner:
            hook.remove()
        owned: dict[Any, list[str]] = {}
        for name, module in (self._first or {}).items():
            owned.setdefault(module, []).append(name)
        owned.pop(model, None)
        self._inner = [
            module.register_forward_pre_hook(Hook(self._updates(names)), prepend=True)
            for module, names in owned.items()
        ]

    def _updates(self, names: list[str]) -> Callable[[Any, Any], None]:
        def update(module: Any, inputs: Any) -> None:
            if self._deferred and not self._waiting.isdisjoint(names):
                with self.around():
                    self._apply(names)

        return update


class _Reads(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that reports the tensors which operators read."""

    def __init__(self, updates: LateUpdates) -> None:
        super().__init__()
        self._updates = updates

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Report the inputs of an operator, and call the operator."""
        for tensor in tensors_in([args, kwargs or {}]):
            self._updates.read(tensor)
        return func(*args, **(kwargs or {}))


def _now(option: Any) -> Any:
    """Return a copy of an option's current value; schedulers change tensors in place."""
    return option.clone() if isinstance(option, torch.Tensor) else option


@contextmanager
def _nothing() -> Any:
    yield


def _check(model: Any, optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Reject an optimizer or model that cannot be updated module by module."""
    mine = {id(p) for p in model.parameters()}
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = next((name for name, p in parameters.items() if id(p) not in known), None)
    if missing is not None or not known <= mine:
        has = "parameters of another model" if missing is None else f"no parameter {missing!r}"
        raise CommschedError(f"update_in_forward: the optimizer has {has}")
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if hooks or not hasattr(type(optimizer).step, "__wrapped__"):
        raise CommschedError("update_in_forward takes optimizers of torch.optim without step hooks")
    if compiled_modules(model):
        raise CommschedError("update_in_forward does not go with torch.compile")
