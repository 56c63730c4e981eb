"""Gradients of a step that a training loop has handed over and waited for, and completed layers."""

from collections.abc import Iterator
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.net.graph import Net
from commsched.plan.model import Plan


class BucketSlice(NamedTuple):
    """Elements [start, stop) of a tensor lie from element `at` on in a launch's bucket."""

    launch: int
    at: int
    start: int
    stop: int

    @property
    def bucket(self) -> slice:
        return slice(self.at, self.at + self.stop - self.start)


def places_of(plan: Plan) -> dict[str, tuple[BucketSlice, ...]]:
    """Return where each tensor travels, by ascending elements; tensors as they come back."""
    found: dict[str, list[BucketSlice]] = {}
    last: dict[str, int] = {}
    order = sorted(range(len(plan.launches)), key=lambda i: plan.launches[i].priority)
    for position, index in enumerate(order):
        for name, there, here in plan.launches[index].places:
            found.setdefault(name, []).append(
                BucketSlice(index, here.start, there.start, there.stop)
            )
            last[name] = position
    names = sorted(found, key=last.__getitem__)
    return {name: tuple(sorted(found[name], key=lambda place: place.start)) for name in names}


def check_launches(plan: Plan) -> None:
    """Refuse launches that do not sum gradients over all ranks in every step."""
    for launch in plan.launches:
        if launch.since or launch.payload != "gradient":
            raise CommschedError(
                f"launch {launch.name!r} exchanges {launch.payload}s, from step {launch.since} on;"
                " an Exchanger sums gradients by the same launches in every step"
            )
        if (ranks := plan.group(launch).size) != plan.machine.size:
            raise CommschedError(
                f"launch {launch.name!r} exchanges among {ranks} of {plan.machine.size} ranks; an"
                " Exchanger sums over all"
            )


class Handover:
    """Tensors of a step that were handed over or waited for, and the layers that they complete."""

    def __init__(self, net: Net) -> None:
        self._layers = net.layers[::-1]
        self._depth = {layer.name: i for i, layer in enumerate(self._layers)}
        self._tensors = [t.name for layer in self._layers for t in layer.tensors]
        self._complete = 0  # layers, in backward order
        self._taken: set[str] = set()
        self._waited: set[str] = set()
        self.step = -1

    def begin_at(self, step: int) -> None:
        """Let the next tensor be the first of `step`."""
        self.step = step - 1
        self._waited.update(self._tensors)

    def take(self, name: str) -> bool:
        """Note a tensor as handed over; True if it is the first of a step."""
        first = self.step < 0 or len(self._waited) == len(self._tensors)
        if first:
            self.step += 1
            self._complete = 0
            self._taken.clear()
            self._waited.clear()
        elif name in self._taken:
            missing = self._first_not_in(self._taken)
            if missing is not None:
                raise CommschedError(
                    f"step {self.step}: tensor {name!r} was handed over twice; {missing!r} is"
                    " still missing"
                )
            raise CommschedError(
                f"step {self.step}: tensor {self._first_not_in(self._waited)!r} was not waited"
                " for; wait for every tensor before the next step"
            )
        self._taken.add(name)
        return first

    def completed(self, all_of_them: bool = False) -> Iterator[str]:
        """Return the layers whose backward is over: their and all later layers' tensors are in."""
        while self._complete < len(self._layers):
            layer = self._layers[self._complete]
            if not (all_of_them or self._taken.issuperset(t.name for t in layer.tensors)):
                return
            self._complete += 1
            yield layer.name

    def wait(self, name: str, after: list[str]) -> None:
        """Note a tensor as waited for; `after` are the layers that its buckets wait for."""
        if name not in self._taken:
            raise CommschedError(
                f"step {max(self.step, 0)}: tensor {name!r} was waited for before it was handed"
                " over with ready()"
            )
        if any(self._depth[layer] >= self._complete for layer in after):
            raise CommschedError(
                f"step {self.step}: tensor {name!r} was waited for before"
                f" {self._first_not_in(self._taken)!r} was handed over, which its bucket needs"
            )
        self._waited.add(name)

    @property
    def over(self) -> bool:
        """Whether every tensor of the step was waited for."""
        return len(self._waited) == len(self._tensors)

    def _first_not_in(self, names: set[str]) -> str | None:
        return next((name for name in self._tensors if name not in names), None)
