"""The constants of the optimiser Adam (Kingma & Ba, ICLR 2015)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamConstants:
    """Learning rate, decay of the first and second moment, and the term that avoids 0 / 0."""

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    small: float = 1e-8
