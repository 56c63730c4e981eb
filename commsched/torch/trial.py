"""The trial of two plans in turns, in real training steps."""

import time

from commsched.plan.model import Plan
from commsched.run.adapt.plan_choice import Steps, steps_of
from commsched.torch.sync import Sync

BLOCK = 5  # consecutive steps under one plan


class PlanTrial:
    """Steps under two plans in turns, dense first, and their seconds on this rank."""

    def __init__(self, sync: Sync, dense: Plan, found: Plan, steps: int) -> None:
        self._sync, self._plans = sync, (dense, found)
        self.found = found
        # Blocks in the order A B B A A B B A: a drift over time affects both plans equally.
        each = -(-steps // BLOCK)
        self.steps = each * BLOCK  # of each plan
        blocks = range(each * 2)
        self._turns = [int(k % 4 in (1, 2)) for k in blocks for _ in range(BLOCK)]
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._count = 0  # counted steps
        self._fresh = True  # the next step is the first under its plan, and does not count
        self._last = 0.0  # when the last step was over

    def after_step(self) -> bool:
        """Record a step; change plans after each block; return True once both have enough steps."""
        if not self._fresh:
            now = self._turns[self._count]
            self._seconds[now].append(time.perf_counter() - self._last)
            self._count += 1
            if self._count == len(self._turns):
                return True
            if self._turns[self._count] != now:
                self._follow(1 - now)
                self._fresh = True
                self._last = time.perf_counter()
                return False
        self._fresh = False
        self._last = time.perf_counter()
        return False

    def _follow(self, number: int) -> None:
        self._sync.follow(self._plans[number], "two plans are compared")

    def measured(self) -> tuple[Steps, Steps]:
        """Return the seconds of a step, dense and planned."""
        dense, found = (steps_of(values) for values in self._seconds)
        return dense, found

    def end(self, kept: bool) -> None:
        """Follow the plan, or the dense one, from now on."""
        if self._turns[-1] != kept:
            self._follow(int(kept))
