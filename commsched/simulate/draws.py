"""The random parts of a simulation's operations, drawn once for all of its placements."""

from collections.abc import Callable

from commsched.arrays import Floats, Ints
from commsched.kernels import random
from commsched.plan.model import Plan

Key = tuple[str, int, int, str]  # what is drawn, role, step and operation


class Draws:
    """Hand-overs between threads, and the jitter of coding.

    kept: whether operations are placed more than once.
    """

    def __init__(self, kept: bool) -> None:
        self._kept: dict[Key, Floats] | None = {} if kept else None

    def handover(self, plan: Plan, role: int, step: int, ranks: Ints, name: str) -> Floats:
        """Return how many times the mean an operation's hand-over lasts: (ranks,)."""
        what = plan.seed, step, ranks, f"handover of {name}"
        return self._once(("handover", role, step, name), lambda: random.exponential(1.0, *what))

    def coding(self, plan: Plan, role: int, step: int, ranks: Ints, name: str) -> Floats:
        """Return how many times its seconds an operation codes: (ranks,)."""
        what = plan.machine.coding_jitter, plan.seed, step, ranks, name
        return self._once(("coding", role, step, name), lambda: random.jitter(*what))

    def _once(self, key: Key, drawn: Callable[[], Floats]) -> Floats:
        if self._kept is None:
            return drawn()
        if key not in self._kept:
            self._kept[key] = drawn()
        return self._kept[key]
