"""Espresso, Wang et al., EuroSys 2023: its planning time, and its distance from the bound."""

import time
from collections.abc import Iterable, Iterator, Sequence

from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    Otherwise,
    Paper,
    PublishedRow,
    Trend,
    below,
    missing,
    predictions,
)
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net import file as nets
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.improve import SAME
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.timing import iteration

SOURCE = (
    "Wang, Lin, Zhu & Ng, 'Hi-Speed DNN training with Espresso', EuroSys 2023; machines:"
    " p3dn.24xlarge, p3.16xlarge"
)
PLANNED = {"vgg16": (32, 17.0), "resnet101": (314, 179.0)}  # tensors, ms
LOSSY = ("topk:0.01", "qsgd:4")
NODES = 8
FAST, SLOW = "p3dn.24xlarge", "p3.16xlarge"
CELLS = ((FAST, "vgg16"), (FAST, "bert-base"), (FAST, "lstm"), (SLOW, "vgg16"))
ABOVE, OURS = "iteration above its lower bound", "iteration of our planner over Espresso's"
LIMIT = 10.0  # %


def rows() -> Iterator[PublishedRow]:
    """Yield all numbers of the paper that were available."""
    list(BASELINES)  # import the planners before the clock starts
    for net, (tensors, published) in PLANNED.items():
        yield from _planning(net, tensors, published)
    for machine, net in CELLS:
        yield from _cell(machine, net)
    yield missing("speed-ups over other systems", "its own training runs")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check that Espresso is near the bound, and that our planner is never slower."""
    for machine, required in ((FAST, True), (SLOW, False)):
        worst = max(predictions(found, ABOVE, machine))
        what = f"{machine}: Espresso is within {LIMIT:.0f} % of the bound"
        yield Trend(what=what, shown=f"{worst:.3g} %", met=worst <= LIMIT, required=required)
    ratios = predictions(found, OURS)
    yield below("our planner is never slower than Espresso", max(ratios), 1.0 + SAME)


def _request(machine: str, net: str) -> Request:
    return Request(net=nets.load(net), machine=resized(machines.load(machine), NODES), lossy=LOSSY)


def _planning(net: str, tensors: int, published: float) -> Iterator[PublishedRow]:
    """Time planning including its prices, and with all prices known."""
    request = _request(FAST, net)
    yield PublishedRow(
        group="tensors",
        what=net,
        inputs="the net file, from the authors' profile",
        unit="",
        published=float(tensors),
        predicted=float(len(request.net.tensors)),
        bar=FORMULA,
    )
    problem, seconds = Problem(request), []
    for _ in range(4):
        begin = time.perf_counter()
        BASELINES["espresso"](problem)
        seconds.append(time.perf_counter() - begin)
    for what, spent in (("prices known", min(seconds[1:])), ("pricing included", seconds[0])):
        yield PublishedRow(
            group="planning",
            what=f"{net}, {what}",
            inputs=f"{tensors} tensors, {NODES} x 8 V100, {', '.join(LOSSY)} and lossless",
            unit="ms",
            published=published,
            predicted=spent * 1e3,
            inferred=(
                Otherwise(
                    inferred="methods tried: top-k 1 %, QSGD and lossless ones",
                    instead="theirs are not printed",
                ),
            ),
            note="a time of our planner on this processor, theirs on theirs: no bar",
            measured=True,
        )


def _cell(machine: str, net: str) -> Iterator[PublishedRow]:
    """Compare Espresso's plan with the bound, and ours with Espresso's."""
    request = _request(machine, net)
    problem = Problem(request)
    theirs = iteration(problem.plan(BASELINES["espresso"](problem), "espresso"))
    what = f"{machine}, {net}"
    yield PublishedRow(
        group=ABOVE,
        what=what,
        inputs=f"{NODES} x 8 V100, {', '.join(LOSSY)} and lossless",
        unit="%",
        predicted=round(max(0.0, 100 * (theirs / lower_bound(problem) - 1)), 6),
        note=f"the paper: within {LIMIT:.0f} % of a bound of its own",
    )
    yield PublishedRow(
        group=OURS,
        what=what,
        inputs="the same",
        unit="",
        predicted=iteration(make_plan(request, "best")) / theirs,
        note="not in the paper",
    )


PAPERS.add("espresso")(Paper(SOURCE, rows, trends))
