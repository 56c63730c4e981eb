"""Cells of a validation: a bed, a net, a kind of compute, and a method for all buckets.

Cells are drawn by seed: each bed gets every method, and over the beds each method meets every kind
of net, every kind of compute and every ratio.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import NamedTuple

import numpy as np

from commsched.cost.price import price
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method, legal_methods
from commsched.lab.validate import nets
from commsched.lab.validate.fabrics import Bed
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.net.graph import Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Launch, Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.make_plan import make_plan as planned
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration

# One bed of each line is in the subset.
STRATA = (
    ("1x2-shared", "1x4-shared"),
    ("2x1-100mbit", "2x1-1gbit"),
    ("2x2-100mbit", "2x2-1gbit"),
    ("3x2-slow",),
    ("4x2-400mbit",),
)
BEDS = tuple(bed for beds in STRATA for bed in beds)
SLEEP, SPIN, TRAIN = "sleep", "spin", "train"  # kinds of compute
EMULATED = (SLEEP, SPIN)
RATIOS = (0.25, 1.0, 4.0)  # s of compute per s of a dense exchange of the net
TRAINED = ("gpt", "words", "mlp", "cnn")
BATCH = 16  # samples of a rank in a training
DENSE, PLANNED = "ring+dense", "best"  # two methods: a dense exchange, and the planner's choice
DENSITY = 0.05  # given to dense tensors in cells with a method for sparse tensors
SECONDS = 0.2  # compute plus dense exchange of a step: long enough to measure
BUCKETS = 8  # per net, at the most
LONGEST = 0.4  # s of a predicted step; nets with slower methods are smaller
LARGEST = 2**26  # most elements of a net, for links that seem to take no time per byte
PARTS = 4  # parts of a whole run; each visits all beds, and the first is the subset
SUBSET, FEW_TRAINED = 3, 1  # cells of emulated compute, and trainings, per bed in the subset
CASES, FEW_CASES = 12, 2  # decisions of a whole run, and of the subset


class ValidationCell(NamedTuple):
    """A case that is planned, predicted and run."""

    bed: str
    net: str
    compute: str
    ratio: float  # compute over the dense exchange; 0: the net's own
    method: str  # "": the case of a decision between plans

    def __str__(self) -> str:
        ratio = f" x {self.ratio:g}" if self.ratio else ""
        return f"{self.bed} {self.net} {self.compute}{ratio} {self.method or 'decision'}"

    @property
    def stem(self) -> str:
        """Return the stem of the cell's file names."""
        words = (self.net, self.compute, f"{self.ratio:g}", self.method or "decision")
        return "-".join(words).replace(":", "_").replace("/", "_")


def covering(group: Group, rng: Random) -> tuple[list[str], list[str]]:
    """Return all methods of several phases, and pairs that cover every collective and codec."""
    legal = list(legal_methods(group))
    pairs = [m for m in legal if m.codec is not None]
    rng.shuffle(pairs)
    met, found = set[str](), []
    for pair in pairs:
        parts = {pair.family, pair.coding}
        if parts - met:
            met |= parts
            found.append(pair.name)
    return [m.name for m in legal if m.codec is None], found


def draw(seed: int, beds: Sequence[str] = BEDS, named: bool = False) -> list[list[ValidationCell]]:
    """Return all cells and decisions in parts, sorted by bed; the first part is the subset.

    The subset has a bed of each stratum, or all beds if the user has named them.
    """
    rng = Random(f"validation {seed}")
    few = [b for stratum in STRATA if (b := rng.choice(stratum)) in beds]
    few = few if few and not named else list(beds)
    parts: list[list[ValidationCell]] = [[] for _ in range(PARTS)]
    for bed in beds:
        emulated, trained = _emulated(bed, seed), _trained(bed, seed)
        if bed in few:
            for _ in range(SUBSET):
                parts[0].append(_newest(emulated, parts[0]))
                emulated.remove(parts[0][-1])
            parts[0] += trained[:FEW_TRAINED]
            trained = trained[FEW_TRAINED:]
        for i, cell in enumerate((*emulated, *trained)):
            parts[1 + i % (PARTS - 1)].append(cell)
    for i, case in enumerate(_decisions(seed, few, beds)):
        parts[0 if i < FEW_CASES else 1 + i % (PARTS - 1)].append(case)
    return [sorted(part, key=lambda cell: beds.index(cell.bed)) for part in parts]


def _newest(cells: Sequence[ValidationCell], chosen: Sequence[ValidationCell]) -> ValidationCell:
    """Return the cell that adds most: a method not chosen yet, then the rarest kinds."""
    methods = {cell.method for cell in chosen}
    had = Counter(kind for cell in chosen for kind in _kinds(cell))

    def met(cell: ValidationCell) -> tuple[bool, int]:
        return cell.method in methods, sum(had[kind] for kind in _kinds(cell))

    return min(cells, key=met)


def _kinds(cell: ValidationCell) -> tuple[object, object]:
    """Return the kind of compute, with its ratio, and of net."""
    return (cell.compute, cell.ratio), cell.net.partition(":")[0]


def _emulated(bed: str, seed: int) -> list[ValidationCell]:
    """Return cells of emulated compute: every method once, a dense ring with each kind and ratio.

    Two consecutive beds of BEDS divide the pairs between them.
    """
    rng = Random(f"emulated {bed} {seed}")
    number = BEDS.index(bed) if bed in BEDS else None
    shared = rng if number is None else Random(f"pairs {number // 2} {seed}")
    methods, pairs = covering(Bed.of(bed).group, shared)
    methods += pairs if number is None else pairs[number % 2 :: 2]
    rng.shuffle(methods)
    ways = list(product(nets.KINDS, EMULATED, RATIOS))
    rng.shuffle(ways)
    found = [(ways[i % len(ways)], method) for i, method in enumerate(methods)]
    dense = [((kind, *way), DENSE) for kind, way in zip(_cycle(rng), _ways(rng), strict=False)]
    return [
        ValidationCell(bed, f"{kind}:{rng.randrange(1000)}", compute, ratio, method)
        for (kind, compute, ratio), method in (dense[0], *found, *dense[1:])
    ]


def _ways(rng: Random) -> list[tuple[str, float]]:
    ways = list(product(EMULATED, RATIOS))
    rng.shuffle(ways)
    return ways


def _cycle(rng: Random) -> Iterator[str]:
    while True:
        yield from rng.sample(list(nets.KINDS), len(nets.KINDS))


def _trained(bed: str, seed: int) -> list[ValidationCell]:
    """Return trainings of every net by the planner's plan, and by a method if cores suffice."""
    rng = Random(f"trained {bed} {seed}")
    names = rng.sample(TRAINED, len(TRAINED))
    first = [PLANNED, DENSE] * 2
    found = [ValidationCell(bed, n, TRAIN, 0.0, m) for n, m in zip(names, first, strict=True)]
    if Bed.of(bed).ranks == 2:
        methods, pairs = covering(Bed.of(bed).group, rng)
        chosen = rng.sample([*methods, *pairs], len(names))
        found += [ValidationCell(bed, n, TRAIN, 0.0, m) for n, m in zip(names, chosen, strict=True)]
    return found


def _decisions(seed: int, few: Sequence[str], beds: Sequence[str]) -> list[ValidationCell]:
    """Return the cases of decisions: first those on beds of the subset, with fewer ranks first."""
    rng = Random(f"decisions {seed}")
    quick = sorted(rng.sample(few, len(few)), key=lambda bed: Bed.of(bed).ranks)
    places = [*quick, *rng.sample(list(beds), len(beds))]
    kinds = _cycle(rng)
    return [
        ValidationCell(
            places[i % len(places)],
            f"{next(kinds)}:{rng.randrange(1000)}",
            EMULATED[(i + i // len(RATIOS)) % len(EMULATED)],
            RATIOS[i % len(RATIOS)],
            "",
        )
        for i in range(CASES)
    ]


def fitting(cell: ValidationCell, machine: Machine) -> Net:
    """Return the cell's net, smaller by one factor if its predicted step would last too long."""
    net = scaled(cell, machine)
    like = cell if cell.method else cell._replace(method=DENSE)
    seconds = iteration(make_plan(like, net, machine))
    return net if seconds <= LONGEST else net.scaled(LONGEST / seconds)


def scaled(cell: ValidationCell, machine: Machine) -> Net:
    """Return the cell's net, scaled so that compute and a dense ring take SECONDS together."""
    net = nets.load(cell.net)
    ring, exchange = find_method(DENSE), SECONDS / (1.0 + cell.ratio)
    sizes = np.array([0.5, 1.0]) * 2**20  # elements
    short, long = (
        price(ring, BucketSpec.uniform(int(n)), machine, machine.everyone).seconds for n in sizes
    )
    per_element = (long - short) / (sizes[1] - sizes[0])
    net = net.scaled(exchange / max(per_element, exchange / LARGEST) / net.numel)
    lasts = price(ring, BucketSpec.uniform(net.numel), machine, machine.everyone).seconds
    compute = sum(sum(net.seconds(layer, machine.device)) for layer in net.layers)
    net = net.scaled(1.0, lasts * cell.ratio / compute)
    if cell.compute == SPIN:
        measured = Measured(device=PROCESSOR, source="emulated on a core by commsched validate")
        net = replace(net, measured=measured)
    return net


def make_plan(cell: ValidationCell, net: Net, machine: Machine) -> Plan:
    """Plan a cell: every bucket uses the cell's method, or the planner chooses."""
    if cell.method == PLANNED:
        return planned(Request(net=net, machine=machine, time_limit=2.0))
    method = find_method(cell.method)
    if cell.compute != TRAIN and _for_sparse(method):
        net = _sparse(net, method)
    request = Request(net=net, machine=machine)
    limit = 4.0 * net.numel / BUCKETS

    def choose(launch: Launch) -> Launch:
        return replace(launch, method=cell.method)

    made = launches(request, buckets(request, limit, limit), choose)
    return replace(made, planner="validate")


def _for_sparse(method: Method) -> bool:
    return method.lossless and not method.fixed


def _sparse(net: Net, method: Method) -> Net:
    """Make dense gradients as sparse as after top-k; all gradients if static ones are needed."""
    law = Sparsity(law="mask" if method.static else "uniform", density=DENSITY)

    def thinned(tensor: Tensor) -> Tensor:
        kept = tensor.sparsity.law != "dense" and not method.static
        return tensor if kept else replace(tensor, sparsity=law)

    return replace(
        net,
        layers=tuple(
            replace(layer, tensors=tuple(map(thinned, layer.tensors))) for layer in net.layers
        ),
    )
