"""The experts that a model's tokens choose, observed by hooks during forward passes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from mpi4py import MPI
from torch.utils._python_dispatch import TorchDispatchMode

from commsched.arrays import Floats
from commsched.net.experts import Experts
from commsched.net.graph import Net, Tensor
from commsched.torch.hooks import Hook
from commsched.torch.mixtures import ModuleMixture
from commsched.torch.observer import tensors_in
from commsched.torch.parameters import bare_name

CHOOSES = {"topk": 2, "argmax": 1, "max": 1}  # operator -> index of its argument `dim`


class Picks(TorchDispatchMode):  # type: ignore[misc]
    """The choices among `count` values that operators make in a with block.

    The last top-k is the choice; without a top-k each argmax; without these each maximum.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._found: dict[str, list[tuple[Any, int]]] = {name: [] for name in CHOOSES}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator, and record which values it has chosen."""
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name in CHOOSES and isinstance(made, tuple) is (name != "argmax"):
            place = CHOOSES[name]
            dim = kwargs.get("dim", args[place] if len(args) > place else -1)
            if dim is not None and args[0].ndim and args[0].shape[dim] == self._count:
                each = args[1] if name == "topk" else 1
                if each < self._count:
                    self._found[name].append((made[1] if isinstance(made, tuple) else made, each))
        return made

    def choices(self) -> tuple[int, Floats]:
        """Return the number of choices per token, and how often each value was chosen: (count,)."""
        kinds = self._found
        some = kinds["topk"][-1:] or kinds["argmax"] or kinds["max"]
        found = np.zeros(self._count)
        for chosen, _ in some:
            found += np.bincount(chosen.flatten().numpy(), minlength=self._count)
        return sum(each for _, each in some), found


@dataclass
class SeenTokens:
    """Counts of a mixture's tokens and choices over some steps, on one rank or on all."""

    mixture: ModuleMixture
    picks: Floats  # choices of each expert: (count,)
    rows: Floats  # non-zero rows that each expert read, if experts are modules: (count,)
    steps: float = 0.0
    tokens: float = 0.0  # number of tokens whose choices were seen
    inputs: float = 0.0  # rows read by the home module, as wide as the router's
    top: float = 0.0
    width: float = 0.0  # elements of the rows that experts read
    most_picks: float = 0.0  # largest of one expert, rank and step
    most_rows: float = 0.0
    apart: float = 0.0  # 1: experts read different tensors

    def add(self, picks: Floats, rows: Floats) -> None:
        """Add a step."""
        self.picks, self.rows, self.steps = self.picks + picks, self.rows + rows, self.steps + 1
        self.most_picks = max(self.most_picks, picks.max())
        self.most_rows = max(self.most_rows, rows.max())

    def over_ranks(self, comm: MPI.Intracomm) -> "SeenTokens":
        """Return the counts over all ranks, equal on every rank."""
        sums = np.array([self.steps, self.tokens, self.inputs, *self.picks, *self.rows])
        most = np.array([self.top, self.width, self.most_picks, self.most_rows, self.apart])
        comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
        comm.Allreduce(MPI.IN_PLACE, most, op=MPI.MAX)
        picks, rows = np.split(sums[3:], 2)
        return SeenTokens(self.mixture, picks, rows, *sums[:3].tolist(), *most.tolist())

    @property
    def experts(self) -> Experts | str:
        """The observed experts, or why there are none; "": the modules are no experts.

        The capacity is the most that one expert took from one rank in one step.
        """
        count, where = self.mixture.count, self.mixture.layer or "the model"
        read, tokens, top = self.rows.sum(), self.tokens, int(self.top)
        if not tokens:
            tokens = self.inputs
            if not 0 < read < count * tokens:
                if read and self.apart and np.ptp(self.rows) == 0:
                    return ""  # such as consecutive blocks
                return f"{where}: no choice among its {count} experts was seen"
            top = ceil(read / tokens - 1e-9)
        elif top > count:
            return f"{where}: which of {top} choices are its {count} experts is not known"
        by_rows = read > 0 and (not self.tokens or read <= self.picks.sum())
        taken, most = (self.rows, self.most_rows) if by_rows else (self.picks, self.most_picks)
        each = max(round(tokens / self.steps), 1)
        return Experts(
            count=count,
            tokens=each,
            width=int(self.width) or self.mixture.width,
            top=top,
            capacity=most * count / (top * each),
            load=tuple((taken / (top * tokens)).tolist()),
        )


class Choices:
    """A watch over the mixtures of a model in some forward passes."""

    def __init__(self, model: Any, mixtures: list[ModuleMixture]) -> None:
        self.seen = [SeenTokens(m, np.zeros(m.count), np.zeros(m.count)) for m in mixtures]
        self._modules: dict[str, Any] = {}
        for name, module in model.named_modules():  # outer ones first: wrappers
            self._modules.setdefault(bare_name(name), module)

    def over_ranks(self, comm: MPI.Intracomm) -> list[SeenTokens]:
        """Return the counts over all ranks, equal on every rank."""
        return [seen.over_ranks(comm) for seen in self.seen]

    def watching(self, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a loss function whose forward pass is watched."""

        def watched(batch: Any) -> Any:
            with self._step():
                return loss(batch)

        return watched

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Watch the forward pass of a step."""
        with ExitStack() as hooks:
            for seen in self.seen:
                hooks.enter_context(self._watched(seen))
            yield

    @contextmanager
    def _watched(self, seen: SeenTokens) -> Iterator[None]:
        mixture = seen.mixture
        picks, rows = np.zeros(mixture.count), np.zeros(mixture.count)
        under_way: list[Picks] = []
        read: set[int] = set()  # addresses of tensors that experts read

        def begun(_: Any, inputs: Any, named: Any) -> None:
            fitting = (t for t in tensors_in([inputs, named]) if _width(t) == mixture.width)
            seen.inputs += next((t.numel() / mixture.width for t in fitting), 0.0)
            under_way.append(Picks(mixture.count))
            under_way[-1].__enter__()

        def ended(*_: Any) -> None:
            mode = under_way.pop()
            mode.__exit__(None, None, None)
            top, chosen = mode.choices()
            picks[:] += chosen
            seen.top = max(seen.top, top)
            seen.tokens += chosen.sum() / max(top, 1)

        def entered(expert: int) -> Callable[..., None]:
            def enter(_: Any, inputs: Any, named: Any) -> None:
                tensor = next((t for t in tensors_in([inputs, named]) if _width(t)), None)
                if tensor is not None:
                    seen.width = _width(tensor)
                    rows[expert] += int((tensor.detach() != 0).flatten(0, -2).any(-1).sum())
                    read.add(tensor.data_ptr())

            return enter

        home = self._modules[mixture.home]
        hooks = [
            home.register_forward_pre_hook(Hook(begun), with_kwargs=True),
            home.register_forward_hook(Hook(ended), prepend=True, always_call=True),
            *(
                self._modules[path].register_forward_pre_hook(Hook(entered(e)), with_kwargs=True)
                for e, path in enumerate(mixture.experts)
            ),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        seen.apart = max(seen.apart, float(len(read) > 1))
        seen.add(picks, rows)


def _width(tensor: Any) -> int:
    """Return the elements of a row of a real-valued tensor; 0: the tensor has no such rows."""
    return int(tensor.shape[-1]) if tensor.ndim > 1 and tensor.is_floating_point() else 0


def with_experts(net: Net, mixtures: list[SeenTokens], layer_of: Mapping[str, str]) -> Net:
    """Give layers the observed experts; the source tells which, and what was not observed."""
    said = []
    for seen in mixtures:
        experts, stacks = seen.experts, seen.mixture.stacks
        if isinstance(experts, str):
            said += [experts] if experts else []
            continue
        name = layer_of.get(next(iter(stacks)), "")
        if not name:
            continue
        layers = tuple(
            replace(
                layer,
                experts=experts,
                tensors=tuple(_of_experts(tensor, stacks) for tensor in layer.tensors),
            )
            if layer.name == name
            else layer
            for layer in net.layers
        )
        net = replace(net, layers=layers)
        said.append(
            f"{name}: {experts.count} experts, top {experts.top}, load of {seen.steps:.0f} passes,"
            " capacity of the busiest"
        )
    return replace(net, source="; ".join([net.source, *said]))


def _of_experts(tensor: Tensor, stacks: Mapping[str, str]) -> Tensor:
    if tensor.name not in stacks:
        return tensor
    stack = stacks[tensor.name]
    return replace(tensor, stack=stack) if stack else replace(tensor, axis=0)
