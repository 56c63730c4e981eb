"""Hooks on a user's modules that do nothing in a copy or a pickle of the model."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Hook:
    """A hook that calls a function; in a copy or pickle of the model the hook does nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._call(*inputs, **named)

    def __reduce__(self) -> tuple[Callable[[], "Hook"], tuple[()]]:
        return without_effect, ()


def without_effect() -> Hook:
    """Return a hook that does nothing, for a model that is not attached."""
    return Hook(lambda *inputs, **named: None)


def all_ours(parameter: Any) -> bool:
    """Tell whether the user has no hook on a parameter's accumulated gradient."""
    return all(isinstance(hook, Hook) for hook in _hooks_of(parameter))


def some_ours(parameter: Any) -> bool:
    """Tell whether this package has a hook on a parameter's accumulated gradient."""
    return any(isinstance(hook, Hook) for hook in _hooks_of(parameter))


def _hooks_of(parameter: Any) -> Iterable[Any]:
    return (parameter._post_accumulate_grad_hooks or {}).values()


torch.serialization.add_safe_globals([without_effect])  # a script loads its model as before
