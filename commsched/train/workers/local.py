"""The worker that trains a real net with local losses: strategy `local`."""

from collections.abc import Sequence

from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.model import Hop, Op
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage, head_name, is_head
from commsched.strategies.local import chunks_of
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import ForwardBackward
from commsched.train.layers.heads import Shape, tile_of, with_heads
from commsched.train.layers.layer import TrainableNet, alone
from commsched.train.samples import Data
from commsched.train.workers.pipeline import PipelineWorker
from commsched.train.workers.stage import Add, StageNet, shapes_around

AHEAD = 2  # steps by which scores may be late, per stage, because batches stream


class LocalNet(StageNet):
    """A stage whose gradient comes from its chunk's loss; a chunk's last stage has the head."""

    def __init__(self, assigned: Assignment, stages: Sequence[Stage], number: int) -> None:
        super().__init__(assigned, stages, number)
        net, plan = assigned.net, assigned.plan
        params = STRATEGIES[plan.strategy].settings(plan)
        self.stages = stages
        chunks = ([stage.number for stage in chunk] for chunk in chunks_of(self.stages, params))
        chunk = next(c for c in chunks if number in c)
        self.overlapping = params["variant"] == "overlapping"
        self._tells = number > 0 and (self.overlapping or number != chunk[0])
        self.head = slice(0)
        if number == chunk[-1] and not self.stage.last:
            self.head = _head(net, plan, number)
            self._check_head(assigned.data)
        self._again: ForwardBackward | None = (
            None  # the batch's pass for the loss of the next stage
        )

    def _check_head(self, data: Data) -> None:
        """Reject a head that cannot read the stage's outputs."""
        tile_of(self._outputs, last_reads(self.net, data))

    def _enter_from_above(
        self, step: int, microbatch: int, walk: ForwardBackward, add: Add
    ) -> None:
        if self.head == slice(0):
            super()._enter_from_above(step, microbatch, walk, add)
            return
        walk.forward(self.head.start)
        self._judge(walk, self._samples_of(step, microbatch).targets, 1.0)
        add(walk.backward(self.head.start))
        if self.overlapping:
            self._again = walk.copy()

    def second_backward(self, step: int, add: Add) -> None:
        """Run a second backward of the batch, from the gradient of the next stage's loss."""
        number, walk = self.stage.number, self._again
        assert walk is not None
        walk.above = self._fetch_message(step, Hop(number + 1, number, 0))
        self._again = None
        alone(self._backward_layers(walk, add))


class LocalLossWorker(PipelineWorker):
    """A stage that learns from its own loss, or from the loss at the end of its chunk.

    Only the last stage reports scores. A stage starts the next batch once it has updated, without
    waiting for others. So stages cannot agree to skip a step, and must compute in 32 bits.
    """

    parts = LocalNet

    def __init__(self, assigned: Assignment) -> None:
        plan = assigned.plan
        share = STRATEGIES[plan.strategy].settings(plan)["head"]
        heads = [layer.name for layer in plan.net.layers if is_head(layer.name)]
        if heads and share != 1.0:
            raise CommschedError(
                f"strategy 'local' trains with heads as large as the net's, head=1; got {share}"
            )
        whole = with_heads(assigned.net, heads, last_reads(assigned.net, assigned.data))
        super().__init__(assigned._replace(net=whole))
        (stage,) = self._stages
        assert isinstance(stage, LocalNet)
        self._stage = stage
        self.add_parameters(whole.start(self.settings.seed, stage.head))
        self.ahead = AHEAD * len(stage.stages)

    def perform(self, step: int, op: Op) -> None:
        if op.turn is not None and op.turn.again:
            self._stage.second_backward(step, self._add_gradients)
        else:
            super().perform(step, op)


def _head(net: TrainableNet, plan: Plan, number: int) -> slice:
    """Return the index of a stage's auxiliary head among the layers of a net."""
    names = [layer.name for layer in net.layers]
    name = head_name(number)
    if name not in names:
        raise CommschedError(
            f"the plan has no auxiliary head for stage {number}, where a chunk ends; plan with"
            " --param head=1"
        )
    at = names.index(name)
    return slice(at, at + 1)


def last_reads(net: TrainableNet, data: Data) -> Shape:
    """Return the shape of one sample's inputs of a net's last layer, not counting heads."""
    trunk = sum(not is_head(layer.name) for layer in net)
    return shapes_around(net, data, slice(trunk - 1, trunk))[0]
