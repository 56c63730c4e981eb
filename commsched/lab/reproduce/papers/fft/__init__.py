"""FFT gradient sparsification, Wang et al., HPDC 2020, on the P100 nodes of Comet."""

from collections.abc import Iterable, Iterator, Sequence

from commsched.lab.reproduce.paper import PAPERS, Paper, PublishedRow, Trend, missing, predictions
from commsched.lab.reproduce.papers.fft.exchanges import exchanges
from commsched.lab.reproduce.papers.fft.steps import (
    CEILING,
    FASTER,
    METHODS,
    faster_group,
    ring_group,
    steps,
)
from commsched.machine import file as machines

SOURCE = (
    "Wang, Wu, Zhang, Liu, Bosilca, Herlihy & Fonseca, 'FFT-based gradient sparsification for the"
    " distributed training of deep neural networks', HPDC 2020, arXiv 1811.08596; machine: comet"
)


def rows() -> Iterator[PublishedRow]:
    """Yield all numbers of the paper that were available."""
    comet = machines.load("comet")
    yield from exchanges(comet)
    yield from steps(comet)
    yield missing("speed-ups and accuracies", "VGG16, Inception-v4")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check the order of the four methods, and their speed-ups against what is possible."""
    for net, printed in FASTER.items():
        speeds = dict(zip(METHODS, predictions(found, faster_group(net)), strict=True))
        shown = ", ".join(f"{name} {x:.3g}" for name, x in speeds.items())
        order = speeds["TernGrad"] > speeds["QSGD"] > speeds["Top-K"]
        what = f"{net}: TernGrad is faster than QSGD, QSGD than Top-K"
        yield Trend(what=what, shown=shown, met=order)
        first = speeds["FFT"] == max(speeds.values())
        yield Trend(what=f"{net}: FFT is the fastest", shown=shown, met=first, required=False)
        (ceiling,) = predictions(found, CEILING, net)
        yield Trend(
            what=f"{net}: the published {printed['FFT']} of FFT is below the ceiling of free coding"
            " and free packets",
            shown=f"{ceiling:.3g}",
            met=printed["FFT"] < ceiling,
            required=False,
        )
        best = max(predictions(found, ring_group(net)))
        yield Trend(
            what=f"{net}: against a ring, not shown there, the advantage is below 15 %",
            shown=f"{best:.3g} at most",
            met=best < 1.15,
        )


PAPERS.add("fft")(Paper(SOURCE, rows, trends))
