"""What lossy launches lose of their pieces in each step, for the error budget."""

from commsched.arrays import Floats
from commsched.coding.codec import State
from commsched.exchange import error
from commsched.exchange.registry import find_method, phases_of
from commsched.plan.model import Plan


class WatchedLosses:
    """The squares of what some launches wanted to deliver, and of what was lost, piece by piece."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[slice]] = {}  # of the launches that are watched
        self.squares: dict[tuple[int, int], tuple[Floats, Floats]] = {}  # by step and launch
        self._before: dict[int, tuple[Floats, Floats | None]] = {}

    def before(self, plan: Plan, launch: int, state: State) -> None:
        """Look at a launch whose gradient is in its state, before its first phase."""
        if launch in self.pieces:
            method, first = find_method(plan.launches[launch].method), phases_of(plan, launch)[0]
            self._before[launch] = error.before(method, first, state, self.pieces[launch])

    def after(self, step: int, launch: int, state: State) -> None:
        """Look at a launch after its last phase."""
        if launch in self._before:
            wanted, lost = self._before.pop(launch)
            if lost is None:
                lost = error.after(state, self.pieces[launch])
            self.squares[step, launch] = wanted, lost
