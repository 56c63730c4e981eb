"""The ranks that sum each gradient of a stage: those with equal parts of tensors, or all ranks."""

from collections.abc import Callable
from dataclasses import replace

from commsched.net.graph import Net, Tensor
from commsched.program.stages import Stage


def gradient_teams(net: Net, stage: Stage) -> list[Stage]:
    """Return a stage once for each set of tensors whose gradients the same ranks sum.

    If ranks share tokens, each rank computes the part of its tokens of the gradient of a whole
    tensor (a norm, or a bias behind rows); all ranks of the stage sum it, as a stage of width 1.
    Source: Korthikanti et al., "Reducing activation recomputation in large transformer models",
    MLSys 2023; the sum over tensor-parallel ranks is Megatron-LM's, there an all-reduce of its own.
    """
    if net.sequence == 1:
        return [stage]
    parted = _only(stage, lambda tensor: tensor.axis >= 0)
    whole = replace(_only(stage, lambda tensor: tensor.axis < 0), width=1)
    return [part for part in (parted, whole) if part.numel]


def _only(stage: Stage, wanted: Callable[[Tensor], bool]) -> Stage:
    layers = tuple(
        replace(layer, tensors=tuple(filter(wanted, layer.tensors))) for layer in stage.layers
    )
    numel = sum(tensor.numel for layer in layers for tensor in layer.tensors)
    return replace(stage, layers=layers, numel=numel)
