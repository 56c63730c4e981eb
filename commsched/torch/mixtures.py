"""Candidates for mixtures of experts in a model, from modules and shapes alone."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from commsched.torch.observer import LISTS, compiled_modules
from commsched.torch.parameters import bare_name, trained

CONVOLUTIONS = torch.nn.modules.conv._ConvNd  # axis 0 of a convolution is its channels


@dataclass(frozen=True, kw_only=True)
class ModuleMixture:
    """A candidate: equal modules, or parameters with equal first axes, and a router of that size.

    The router is a matrix; one of its sides is the number of experts.
    """

    layer: str  # the innermost module around all experts
    home: str  # the innermost module around experts and router
    count: int  # experts
    width: int  # elements of a token, which the router reads
    stacks: Mapping[str, str]  # parameter of an expert -> that of all; "": already of all
    experts: tuple[str, ...] = ()  # modules, one per expert


def mixtures_of(model: Any) -> list[ModuleMixture]:
    """List the candidates for mixtures of experts, except inside compiled modules."""
    shapes = {name: tuple(p.shape) for name, p in trained(model).items()}
    compiled = compiled_modules(model)
    found: dict[tuple[str, int], list[ModuleMixture]] = defaultdict(list)
    for name, module in model.named_modules():
        path = bare_name(name)
        if any(not outer or f"{path}.".startswith(f"{outer}.") for outer in compiled):
            continue
        for count, stacks, experts in _members(path, module, shapes):
            router = _router(model, path, shapes, stacks, count)
            if router is not None:
                home, width = router
                one = ModuleMixture(
                    layer=path, home=home, count=count, width=width, stacks=stacks, experts=experts
                )
                found[home, count].append(one)
    return [_together(some) for some in found.values()]


Members = tuple[int, dict[str, str], tuple[str, ...]]  # count, stacks and experts of a mixture


def _members(path: str, module: Any, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Members]:
    """Yield equal modules in a list, or parameters of a module with equal first axes."""
    if isinstance(module, LISTS):
        experts = [f"{path}.{key}".lstrip(".") for key, _ in module.named_children()]
        own = [_inside(each, shapes) for each in experts]
        if len(own) > 1 and own[0] and all(one == own[0] for one in own):
            stacks = {f"{e}.{rest}": f"{path}.{rest}" for e in experts for rest in own[0]}
            yield len(own), stacks, tuple(experts)
        return
    if isinstance(module, CONVOLUTIONS):
        return
    own_shapes = {
        n: shapes[n]
        for n in (f"{path}.{key}".lstrip(".") for key, _ in module.named_parameters(recurse=False))
        if n in shapes
    }
    for count in {shape[0] for shape in own_shapes.values() if len(shape) > 2}:
        weights = [n for n, s in own_shapes.items() if len(s) > 2 and s[0] == count]
        biases = [n for n, s in own_shapes.items() if len(s) == 2 and s[0] == count]
        if len(biases) != len(weights):  # one of the weights may be the router
            biases = []
        if count > 1:
            yield count, dict.fromkeys([*weights, *biases], ""), ()


def _inside(path: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's parameters by their names in the module."""
    return {n.removeprefix(f"{path}."): s for n, s in shapes.items() if n.startswith(f"{path}.")}


def _router(
    model: Any,
    path: str,
    shapes: Mapping[str, tuple[int, ...]],
    own: Mapping[str, str],
    count: int,
) -> tuple[str, int] | None:
    """Return the nearest module around experts with a matrix of that size, and its other side."""
    modules = {bare_name(name): module for name, module in model.named_modules()}
    while True:
        inside = _inside(path, shapes) if path else shapes
        for name, shape in () if isinstance(modules[path], LISTS) else inside.items():
            full = f"{path}.{name}".lstrip(".")
            if len(shape) != 2 or full in own:
                continue
            if shape[0] == count:
                return path, shape[1]
            owner = modules[full.rpartition(".")[0]]
            if shape[1] == count and not isinstance(owner, torch.nn.Linear):
                return path, shape[0]
        if not path:
            return None
        path = path.rpartition(".")[0]


def _together(some: list[ModuleMixture]) -> ModuleMixture:
    """Join the lists and parameters of one home; rows are those of the first list."""
    first = next((one for one in some if one.experts), some[0])
    paths = [one.layer.split(".") for one in some]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    stacks = {name: stack for one in some for name, stack in one.stacks.items()}
    return replace(first, layer=".".join(common), stacks=stacks)
