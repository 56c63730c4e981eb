"""DASO's controller: synchronise more often once the loss stops falling."""

from dataclasses import dataclass, replace
from math import inf

LESS = 0.05  # share by which a loss must be below the best loss to count as better
MOST_WAIT = 4  # divisor of `most`: the wait after a plateau at skip = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Steps between exchanges, until a merge, and between averages; updated after every epoch.

    A plateau: more than `patience` epochs without a loss below best (1 - 0.05). Then
        skip > 1:  skip' = skip // 2,  wait' = min(skip', max(1, wait - 1)),
                   local' = max(1, local // 2)
        skip = 1:  skip' = most,       wait' = most // 4,         local' = most // 4
    and the count of epochs restarts; the best loss stays. A `local` of 0 stays. The published
    wait' may be above skip', which would begin an exchange while the one before is under way.
    Source: Coquelin et al., arXiv 2104.05588; `local`: class DASO of Heat 1.9, dp_optimizer.py.
    """

    skip: int
    wait: int
    local: int
    most: int
    patience: int
    best: float = inf
    bad: int = 0  # epochs since the best loss

    def after(self, loss: float) -> "Plateau":
        """Return the next epoch's numbers from the mean loss of all ranks at this epoch's end."""
        if loss < self.best * (1.0 - LESS) or (self.best == inf and loss < inf):
            return replace(self, best=loss, bad=0)
        if self.bad < self.patience:
            return replace(self, bad=self.bad + 1)
        if self.skip > 1:
            skip, local = self.skip // 2, max(1, self.local // 2)
            wait = min(skip, max(1, self.wait - 1))
        else:
            skip, wait, local = self.most, self.most // MOST_WAIT, max(1, self.most // MOST_WAIT)
        return replace(self, skip=skip, wait=wait, local=self.local and local, bad=0)
