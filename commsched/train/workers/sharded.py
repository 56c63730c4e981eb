"""The worker of `zero1`, `zero2` and `zero3`, which updates its shards of the parameters."""

from collections.abc import Iterator, Mapping

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.sharded import own_places, shard_of
from commsched.kernels.modules import on_host
from commsched.program.model import Op
from commsched.program.units import LayerUnit, units
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import TrainableNet, lent
from commsched.train.neighbours import Neighbours, around
from commsched.train.workers.learner import Learner, flat


class ShardedWorker(Learner):
    """A learner with float32 parameters and optimiser state of its shards only.

    Layers compute with the parameters that were gathered last. Under `zero3` these live from their
    gather to the end of their unit's computation. Under `zero2` and `zero3` gradients live until
    they are copied into a bucket.
    """

    def __init__(self, assigned: Assignment) -> None:
        super().__init__(assigned)
        plan = assigned.plan
        self._level = int(plan.strategy.removeprefix("zero"))
        self._units = units(plan)
        self._place = {  # launch -> its unit
            index: unit
            for unit in self._units
            for index in (unit.reduce, unit.gather, unit.regather)
            if index is not None
        }
        self._shapes = {name: values.shape for name, values in self.values.items()}
        # direction, layer -> tensors that the layer drops after its computation
        self._drops = {
            (backward, unit.start if backward else unit.stop - 1): self._tensors(unit)
            for unit in self._units
            for backward in (False, True)
            if self._level == 3 and (backward or unit.regather is not None)
        }
        self._shards = {unit.reduce: self._shard(unit.reduce) for unit in self._units}
        self.values.clear()
        self.kept.clear()
        if self._level == 3:
            _check_borrowed(assigned.net, self._units)
            self.used.clear()

    def _tensors(self, unit: LayerUnit) -> list[str]:
        return [piece.tensor for piece in self._plan.launches[unit.reduce].pieces]

    # For the engine

    def gradient(self, step: int, launch: int, out: Array) -> None:
        super().gradient(step, launch, out)
        if self._level >= 2:
            for name in self._tensors(self._place[launch]):
                del self._gradients[name]

    def parameters(self, step: int, launch: int, out: Array) -> None:
        own = self._shards[self._place[launch].reduce]["value"]
        out[shard_of(self._plan, launch, self._rank)] = own

    def replace(self, step: int, launch: int, values: Array) -> None:
        self._use({n: values[here] for n, _, here in self._plan.launches[launch].places})

    def _use(self, found: Mapping[str, Array]) -> None:
        """Let layers compute with a copy of these parameters."""
        kind = np.float16 if self.settings.half else np.float32
        for name, values in found.items():
            if name not in self.used:
                self.used[name] = self._module.empty(self._shapes[name], kind)
            flat(self.used[name])[:] = flat(values)

    # For the compute stream

    def perform(self, step: int, op: Op) -> None:
        super().perform(step, op)
        if op.turn is not None:
            for name in self._drops.get((op.turn.backward, self._index[op.layer]), ()):
                del self.used[name]

    # Between steps

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        self._use(self.whole(others))
        yield from super().evaluate(others)
        if self._level == 3:
            self.used.clear()

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        found = {
            name: self._module.zeros(shape, np.float32) for name, shape in self._shapes.items()
        }
        for unit in self._units:
            for owner, values in self._from_all(unit, others):
                start = shard_of(self._plan, unit.gather, owner).start
                for name, there, here in own_places(self._plan, unit.gather, owner):
                    flat(found[name])[there] = values[here.start - start : here.stop - start]
        return found

    def _from_all(self, unit: LayerUnit, others: Neighbours) -> Iterator[tuple[int, Array]]:
        """Yield each owner's exact shard of a unit, passed around a ring of the owners."""
        group = self._plan.group_of(self._plan.launches[unit.gather], self._rank)
        assert group is not None
        owned = [shard_of(self._plan, unit.gather, owner) for owner in group.ranks]
        own = on_host(self._shards[unit.reduce]["value"])
        sizes = [each.stop - each.start for each in owned]
        for owner, values in around(others, group.ranks, self._rank, own, sizes):
            yield owner, self.asarray(values)

    # For checkpoints

    def refresh(self) -> None:
        """Do nothing after a restore: a step begins with gathers."""
        if self.values:
            super().refresh()


def _check_borrowed(net: TrainableNet, found: tuple[LayerUnit, ...]) -> None:
    """Reject a unit that reads a tensor which another unit gathers and may have dropped."""
    for unit in found:
        for layer, name in lent(net.layers[unit.start : unit.stop]):
            raise CommschedError(
                f"net {net.name!r}: layer {layer!r} reads tensor {name!r} of another unit,"
                " which strategy 'zero3' drops after that unit; nearest: --strategy zero2"
            )
