"""Hooks of this process on a user's modules: a copy or a pickle of the model leaves them out."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Hook:
    """Calls a function; `copy.deepcopy` and `torch.save` of the model make it do nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._call(*inputs, **named)

    def __reduce__(self) -> tuple[Callable[[], "Hook"], tuple[()]]:
        return without_effect, ()


def without_effect() -> Hook:
    """Return a hook that does nothing, for a model that nobody has attached."""
    return Hook(lambda *inputs, **named: None)


def all_ours(parameter: Any) -> bool:
    """Tell whether no hook of the user's sees a parameter's gradient once it is there."""
    return all(isinstance(hook, Hook) for hook in _hooks_of(parameter))


def some_ours(parameter: Any) -> bool:
    """Tell whether a hook of this package sees a parameter's gradient, as of an exchange."""
    return any(isinstance(hook, Hook) for hook in _hooks_of(parameter))


def _hooks_of(parameter: Any) -> Iterable[Any]:
    return (parameter._post_accumulate_grad_hooks or {}).values()


torch.serialization.add_safe_globals([without_effect])  # a script loads its model as before
