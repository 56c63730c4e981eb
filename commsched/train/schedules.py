"""Schedules of the learning rate over a training: steps, cosine, plateau, after a warm-up."""

from dataclasses import dataclass
from math import cos, inf, isfinite, pi, sqrt

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError

FORMS = "constant, steps:FACTOR:STEP:..., cosine[:LEAST], plateau:FACTOR:PATIENCE"
LEVELS = 20  # number of thetas of a tied codec


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """The share of the learning rate in each step.

    The share rises linearly to 1 in `warm_up` steps, and then is:
        constant  1
        steps     factor^(number of `at` that are reached)
        cosine    least + (1 - least) (1 + cos(pi t / T)) / 2,  t of T steps after the warm-up
        plateau   factor^(plateaus so far); see `Rates`
    Source: cosine: Loshchilov & Hutter, "SGDR", ICLR 2017; warm-up: Goyal et al., "Accurate, large
    minibatch SGD", arXiv 1706.02677.
    """

    text: str = "constant"
    kind: str = "constant"
    factor: float = 1.0
    at: tuple[int, ...] = ()
    least: float = 0.0
    patience: int = 0
    warm_up: int = 0

    def share(self, step: int, steps: int) -> float:
        """Return the share in a step of a training of `steps` steps, without plateaus."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        if self.kind == "steps":
            return self.factor ** sum(step >= at for at in self.at)
        if self.kind == "cosine":
            passed = (step - self.warm_up) / max(1, steps - self.warm_up)
            return self.least + (1.0 - self.least) * (1.0 + cos(pi * min(passed, 1.0))) / 2
        return 1.0


CONSTANT = RateSchedule()


class Rates:
    """The learning rates of a training; all ranks observe equal losses and have equal rates.

    A plateau is more than `patience` consecutive evaluations without a new least held-out loss.
    """

    def __init__(self, rate: float, schedule: RateSchedule, steps: int) -> None:
        self._rate, self._schedule, self._steps = rate, schedule, steps
        self._factor, self._best, self._bad = 1.0, inf, 0

    def at(self, step: int) -> float:
        """Return the rate of a step."""
        return self._rate * self._schedule.share(step, self._steps) * self._factor

    def observe(self, loss: float) -> None:
        """Take the held-out loss of all ranks; a loss that is not finite is no improvement."""
        if self._schedule.kind != "plateau":
            return
        if loss < self._best:
            self._best, self._bad = loss, 0
            return
        self._bad += 1
        if self._bad > self._schedule.patience:
            self._factor, self._bad = self._factor * self._schedule.factor, 0

    def numbers(self) -> Array:
        """Return the state for a checkpoint: (3,) float64."""
        return np.array([self._factor, self._best, self._bad], np.float64)

    def restore(self, numbers: Array) -> None:
        """Restore the state that `numbers` returned."""
        factor, best, bad = numbers.tolist()
        self._factor, self._best, self._bad = factor, best, int(bad)


def read(text: str) -> RateSchedule:
    """Read `[warm-up:STEPS,]FORM`; raise CommschedError for anything else."""
    first, comma, rest = text.partition(",")
    warm, form = (first, rest) if comma else ("", text)
    try:
        warm_up = 0
        if warm:
            name, colon, count = warm.partition(":")
            warm_up = _whole(count)
            if name != "warm-up" or not colon:
                raise ValueError
        kind, *numbers = form.split(":")
        if kind == "constant" and not numbers:
            return RateSchedule(text=text, warm_up=warm_up)
        if kind == "steps" and len(numbers) > 1:
            at = tuple(_whole(number) for number in numbers[1:])
            return RateSchedule(
                text=text, kind=kind, factor=_share(numbers[0]), at=at, warm_up=warm_up
            )
        if kind == "cosine" and len(numbers) < 2:
            least = _share(numbers[0]) if numbers else 0.0
            return RateSchedule(text=text, kind=kind, least=least, warm_up=warm_up)
        if kind == "plateau" and len(numbers) == 2:
            factor, patience = _share(numbers[0]), _whole(numbers[1])
            return RateSchedule(
                text=text, kind=kind, factor=factor, patience=patience, warm_up=warm_up
            )
        raise ValueError
    except ValueError:
        raise CommschedError(
            f"--schedule must be one of {FORMS}, with factors in (0, 1), also after 'warm-up:N,';"
            f" got {text!r}"
        ) from None


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10):
        raise ValueError
    return int(text)


def _share(text: str) -> float:
    found = float(text)
    if not (isfinite(found) and 0.0 < found < 1.0):
        raise ValueError
    return found


def tied(
    method: str, per_rate: float, rate: float, schedule: RateSchedule, steps: int
) -> dict[int, str]:
    """Return the methods by first step: codec `fft` with a dropped share theta tied to the rate.

        theta_t^2 = L eta_t

    L = per_rate; eta_t = the learning rate of step t; theta at most 0.95, in steps of 0.05.
    Source: Wang et al., HPDC 2020, whose theorem needs it for convergence.
    """
    collective, _, codec = method.partition("+")
    name, *parameters = codec.split(":")
    if name != "fft" or schedule.kind == "plateau":
        raise CommschedError(
            "--theta is for --method COLLECTIVE+fft:SHARE and a schedule that is known beforehand;"
            f" got --method {method} and --schedule {schedule.text}"
        )
    found: dict[int, str] = {}
    before = ""
    for step in range(steps):
        theta = sqrt(per_rate * rate * schedule.share(step, steps))
        level = min(LEVELS - 1, round(theta * LEVELS))
        kept = f"{1 - level / LEVELS:.2g}"
        now = f"{collective}+{':'.join((name, kept, *parameters[1:]))}"
        if now != before:
            found[step] = before = now
    return found
