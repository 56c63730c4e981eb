"""The steps of a training script, recognised by hooks: a script does not mark its passes."""

import time
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commsched.net.expert_part import is_expert
from commsched.run.exchanger import Exchanger
from commsched.torch.hooks import Hook
from commsched.torch.observer import Observer, tensors_in


class Watch:
    """Measurements of each step's layers, data and optimizer; with an Exchanger also as spans.

    A step begins with the first forward pass in training mode after the end of the previous step;
    for a model in evaluation mode, with the last forward pass before the backward pass. A script
    that calls only parts of the model has no forward spans. The backward pass begins when the
    gradient of the model's output is ready, so the loss belongs to the last layer's forward span. A
    layer that runs twice has one span, as long as both runs.
    """

    def __init__(self, model: Any, exchanger: Exchanger | None = None) -> None:
        self.observer = Observer(model, turned=self._turned, experts=_experts(exchanger))
        self.batch = 1  # samples of the last forward pass
        self.steps = 0
        self._mine = {id(parameter) for parameter in self.observer.parameters.values()}
        self._exchanger = exchanger
        self._forwarded = False  # in training mode
        self._seen = False  # a forward pass of this step
        self._begun = self._updating = 0.0  # begin of the forward pass, and of the optimizer's step
        self._ended = 0.0  # end of the last step; 0 before the first
        self._data = self._update = 0.0  # s in this step
        self.observer.__enter__()
        self._hooks = [
            model.register_forward_pre_hook(
                Hook(self._before_forward), prepend=True, with_kwargs=True
            ),
            model.register_forward_hook(Hook(self._after_forward)),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]

    def close(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self.observer.__exit__()

    def _before_forward(self, model: Any, inputs: Any, named: Any) -> None:
        if self._forwarded or not torch.is_grad_enabled():
            return
        self._forwarded, self._seen = model.training, True
        self.batch = next((len(t) for t in tensors_in([inputs, named]) if t.ndim), 1)
        self._begun = self.observer.begin()
        if self._ended:
            self._data = self._begun - self._ended

    def _after_forward(self, model: Any, inputs: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            if self._seen and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.observer.turn())
                return

    def _turned(self) -> None:
        """Add the spans of the finished forward pass."""
        if self._exchanger is None:
            return
        at = self._begun
        if self._seen and self._data:
            self._add("data", at - self._data, at, ahead=True)
        for layer, seconds in self.observer.forward_seconds.items() if self._seen else ():
            at += self.observer.pauses.get(layer, 0.0)
            self._add(f"forward/{layer}", at, at + seconds, ahead=True)
            at += seconds
        self._exchanger.turn()

    def end_of_step(self, keeps: bool = False) -> None:
        """End a step after its means; with `keeps` the observer stores the step."""
        self.observer.end(keeps, self._data, self._update)
        self.steps += 1
        self._forwarded = self._seen = False
        self._update, self._data = 0.0, 0.0
        self._ended = self.observer.begin()
        if self._exchanger is not None:
            self._exchanger.turn()

    def _before_update(self, *_: object) -> None:
        self._updating = time.perf_counter()

    def _after_update(self, optimizer: Any, *_: object) -> None:
        mine = (id(p) in self._mine for group in optimizer.param_groups for p in group["params"])
        if self._forwarded or not any(mine):
            return  # another model's optimizer, or not between backward and forward pass
        self._ended = time.perf_counter()
        if not self._update:  # the first of several optimizers gets the span
            self._add("optimizer", self._updating, self._ended)
        self._update += self._ended - self._updating

    def _add(self, name: str, start: float, end: float, ahead: bool = False) -> None:
        if self._exchanger is not None and (ahead or self.steps):
            self._exchanger.add_span(name, start, end, ahead=ahead)


def _experts(exchanger: Exchanger | None) -> dict[str, str]:
    """Return the parameters of experts in a plan's net, and their layers."""
    some = exchanger.plan.net.layers if exchanger is not None else ()
    return {t.name: layer.name for layer in some for t in layer.tensors if is_expert(layer, t)}
