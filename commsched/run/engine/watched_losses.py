"""The losses of lossy launches, piece by piece and step by step, for the error budget."""

from commsched.arrays import Floats
from commsched.coding.codec import State
from commsched.exchange import error
from commsched.exchange.registry import find_method, phases_of
from commsched.plan.model import Plan


class WatchedLosses:
    """The squares of the wanted values and of the losses of some launches, piece by piece."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[slice]] = {}  # of the watched launches
        self.squares: dict[tuple[int, int], tuple[Floats, Floats]] = {}  # by step and launch
        self._before: dict[int, tuple[Floats, Floats | None]] = {}

    def before(self, plan: Plan, launch: int, state: State) -> None:
        """Add the wanted squares of a launch from its gradient, before its first phase."""
        if launch in self.pieces:
            method, first = find_method(plan.launches[launch].method), phases_of(plan, launch)[0]
            self._before[launch] = error.before(method, first, state, self.pieces[launch])

    def after(self, step: int, launch: int, state: State) -> None:
        """Add the lost squares of a launch, after its last phase."""
        if launch in self._before:
            wanted, lost = self._before.pop(launch)
            if lost is None:
                lost = error.after(state, self.pieces[launch])
            self.squares[step, launch] = wanted, lost
