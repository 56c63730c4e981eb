"""The schedule of DASO's parameter exchanges: the phases of a training, epoch after epoch."""

from collections.abc import Mapping
from typing import NamedTuple

from commsched.plan.model import Param
from commsched.strategies.daso.plateau import Plateau
from commsched.timeline.names import decision_key

DECIDE = "epoch/decide"  # the operation that agrees on an epoch's loss


class EpochExchange(NamedTuple):
    """One exchange of parameters among the ranks with one place in their nodes."""

    purpose: str  # of the launches that carry it
    lane: int  # the place
    start: int  # step after whose update it starts
    waited: int | None  # steps until the merge; None: at once, and the mean replaces all parameters


class EpochStep(NamedTuple):
    """The agreements and exchanges of a step."""

    starts: EpochExchange | None
    merges: EpochExchange | None
    decides: bool  # the ranks agree on the loss
    averages: bool  # gradients in the node


class Epoch(NamedTuple):
    """An epoch: how often ranks exchange, and which place begins."""

    first: int  # step
    batches: int
    blocking: bool  # warm-up or cool-down
    skip: int  # batches from one exchange to the next; 0: blocking
    wait: int  # batches
    local: int  # batches from one average of gradients in the node to the next; 0: each batch
    turn: int  # exchanges before this epoch
    lanes: int

    @property
    def _starts(self) -> range:
        """List the batches that start an exchange that is merged before the last batch."""
        last = self.batches - 1
        always = self.blocking or self.skip == 0
        return range(0) if always else range(0, max(last - self.wait, 0), self.skip)

    @property
    def exchanges(self) -> int:
        """Return the number of exchanges of the epoch."""
        if self.blocking or self.skip == 0:
            return self.batches
        return len(self._starts) + 1

    def at(self, step: int) -> EpochStep:
        """Return what one step of the epoch does.

        The last batch's exchange is blocking, and nothing else is under way then. In between, batch
        b starts one if b % skip == 0 and the merge comes before the last batch.
        """
        batch, last = step - self.first, self.batches - 1
        if self.blocking or self.skip == 0:
            purpose = "blocking" if self.blocking else "cycling"
            at_once = EpochExchange(purpose, self._lane(batch), step, None)
            return EpochStep(at_once, at_once, False, True)
        if batch == last:
            at_once = EpochExchange("cycling", self._lane(len(self._starts)), step, None)
            return EpochStep(at_once, at_once, True, True)
        merges = self._stale(batch - self.wait)
        return EpochStep(self._stale(batch), merges, False, self._averages(batch))

    def _averages(self, batch: int) -> bool:
        """Tell whether a batch before the last averages gradients in the node."""
        return batch % self.skip <= self.wait or self.local < 2 or batch % self.local == 0

    def _stale(self, batch: int) -> EpochExchange | None:
        """Return the exchange that starts after a batch and is merged later, if there is one."""
        if batch not in self._starts:
            return None
        lane = self._lane(batch // self.skip)
        return EpochExchange("cycling", lane, self.first + batch, self.wait)

    def _lane(self, number: int) -> int:
        """Return the place in the node that does the epoch's exchange `number`."""
        return (self.turn + number) % self.lanes


def epoch_of(
    step: int, settings: Mapping[str, Param], lanes: int, decisions: Mapping[str, float]
) -> Epoch:
    """Return the epoch of a step; a loss that is not in `decisions` changes nothing."""
    batches, warmup, cooldown, epochs = (
        int(settings[key]) for key in ("batches", "warmup", "cooldown", "epochs")
    )
    control = Plateau(
        skip=int(settings["gs"]),
        wait=int(settings["wait"]),
        local=int(settings["local_skip"]),
        most=int(settings["max_gs"]),
        patience=int(settings["patience"]),
    )
    turn = 0
    for number in range(step // batches + 1):
        epoch = Epoch(
            first=number * batches,
            batches=batches,
            blocking=number < warmup or number >= epochs - cooldown,
            skip=control.skip,
            wait=control.wait,
            local=control.local,
            turn=turn,
            lanes=lanes,
        )
        turn += epoch.exchanges
        loss = decisions.get(decision_key(epoch.first + batches - 1, DECIDE))
        if loss is not None and not epoch.blocking and epoch.skip > 0:
            control = control.after(loss)
    return epoch
