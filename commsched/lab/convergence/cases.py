"""The cases of the convergence table: every trained strategy, every lossy codec and method."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from commsched.coding.registry import CODECS
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import METHODS
from commsched.lab.convergence.tables import DENSE, SELECTED, TABLES, UNPRUNED, CaseNet, early_bird
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.graph import Layer, Net
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Param, Plan
from commsched.planner.fixed_method import given
from commsched.planner.make_plan import make_plan
from commsched.planner.method_schedule import scheduled
from commsched.planner.request import Request
from commsched.program.message_coding import AS_THEY_ARE, NAMES
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.train.profile import profile_net
from commsched.train.registry import NETS

BUCKET = 20e3  # B: two buckets of the digits' net, so that something can hide under backward
BACKWARD = 2.0  # seconds of backward per second of forward


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Seconds of compute per second of a case's exchanges in a step, and its source."""

    value: float
    source: str
    of: str = DENSE


# Name -> ratio. If only the embedding's dense gradient is exchanged, and Zen makes the exchange
# s = 6.77 times and the step r = 3.1 times as fast: r (C + 1 / s) = C + 1.
RATIOS = {
    "fft": Ratio(
        value=0.56 / 0.44,
        source="ResNet32 on 8 P100, Wang et al., HPDC 2020: 44 % of a step are exchanges; also for"
        " all whose own paper's share was not available: local, shadow, gpipe, 1f1b, other codecs",
    ),
    "zen": Ratio(
        value=(1 - 3.1 / 6.77) / (3.1 - 1),
        source="inferred: LSTM on 16 machines at 25 Gbit/s, Wang et al., OSDI 2025: steps 3.1 times"
        " as fast, the embedding 6.77 times",
    ),
    "daso": Ratio(value=95.3 / 8.0, source="inferred: ResNet-50, 95 ms on a V100, 8 ms a ring"),
    "samo": Ratio(
        value=0.62 / 0.55,
        source="GPT-3 2.7B on 128 V100 by AxoNN, Singh & Bhatele, IPDPS 2023: .62 s and .55 s",
        of=UNPRUNED,
    ),
}
# Table -> further ratios at which its cases, and the dense case, are timed.
OWN = {"digits": ("daso",), "text": ("zen",), "bigrams": ("zen",)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table: how it is trained."""

    name: str
    family: str
    strategy: str = "sync"
    method: str = ""  # of all gradients; "": chosen by the planner
    optimizer: str = "momentum"
    force: dict[str, str] = field(default_factory=dict)  # tensor -> method
    params: dict[str, Param] = field(default_factory=dict)
    later: float = 1.0  # share of the training after which `then` replaces the method
    then: str = ""
    refresh: int = 0  # steps from one broadcast of parameters to the next; 0: none
    ratios: tuple[str, ...] = ("fft",)

    @property
    def words(self) -> str:
        """Describe how gradients travel; empty if the strategy decides."""
        text = self.method
        text += "".join(f", {tensor} by {method}" for tensor, method in self.force.items())
        text += f", after {self.later:.0%} of the steps {self.then}" if self.then else ""
        return text + (f", parameters broadcast every {self.refresh}" if self.refresh else "")


FAMILIES = {
    "8 and 16 bits": ("fp16", "bf16", "fp8", "quant"),
    "1 to 4 bits": ("qsgd", "terngrad", "sign", "onebit"),
    "largest values": ("topk", "threshold", "dgc", "gtopk", "hitopk", "ok-topk"),
    "random values": ("randomk",),
    "spectrum": ("fft",),
    "low rank": ("powersgd",),
}
# Listed codec or method -> its form here: shares of 1 % and less suit far larger nets.
# The warm-up of DGC is four epochs of the digits, as in its paper.
INSTEAD = {
    "dgc:0.001": "dgc:0.01:22",
    "gtopk:0.01": "gtopk:0.03125",
    "hitopk:0.01": "hitopk:0.03125",
    "ok-topk:0.01": "ok-topk:0.03125",
    "randomk:0.01": "randomk:0.03125",
}
# Forms besides the registered ones. topk:1/32 with indices has as many bytes as fft:0.15: a
# quarter of a byte per value.
MORE = ("topk:0.03125", "topk:0.03125:forget", "fft:0.15:forget", "sign:sum")
SKIPS = (0, 1, 8)  # batches between DASO's sums, besides its default of 4
WARM_UP = 66  # steps at most before early-bird masks: three epochs of the digits
OWN_MOMENTUM = ("dgc",)  # codecs that replace the optimiser's momentum


def cases(table: str) -> Iterator[Case]:
    """Yield the cases of a table, the dense one first.

    Pipelines need more layers than the digits' net has; only they use the deeper net.
    """
    net = TABLES[table]
    for case in _every(table):
        if not net.only or case.name in net.only:
            own = replace(case, optimizer=net.optimizer)
            yield own if case.optimizer == "momentum" else case


def _every(table: str) -> Iterator[Case]:
    ratios = ("fft", *OWN.get(table, ()))
    yield Case(name=DENSE, family=DENSE, method="ring+dense", ratios=ratios)
    if table == "messages":
        yield from _coded(TABLES[table].stages)
        return
    if table != "deep":
        yield from _flat(table)
    if TABLES[table].stages:
        yield from _pipelines(TABLES[table])


def _coded(stages: int) -> Iterator[Case]:
    """Yield a pipeline with dense messages, and with every codec that its messages may have."""
    for codec in (AS_THEY_ARE, *NAMES):
        yield Case(
            name=f"1f1b-{codec}",
            family="coded messages",
            strategy="1f1b",
            method="ring+dense",
            params={"stages": stages, "microbatches": 2 * stages, "messages": codec},
        )


def _flat(table: str) -> Iterator[Case]:
    """Yield codecs, methods, and strategies without stages."""
    from commsched.train.job import TRAINED

    lossy = [codec.name for codec in CODECS.values() if not codec.lossless]
    lossy += [method.name for method in METHODS.values() if not method.lossless]
    for name in [*(INSTEAD.get(name, name) for name in lossy), *MORE]:
        yield _lossy(name)
    # As in the paper: no feedback, parameters broadcast every 10 steps; then with its schedule.
    paper = _lossy("fft:0.15:forget")
    yield replace(paper, name="fft-paper", refresh=10)
    falling = replace(paper, method="all-gather+fft:0.1:forget", then="all-gather+fft:1:forget")
    yield replace(falling, name="fft-schedule", later=0.7, refresh=10)
    if looked_up := TABLES[table].looked_up:
        forced = {looked_up: "zen"}
        both = ("fft", "zen")
        yield Case(name="zen", family="sparse", method="ring+dense", force=forced, ratios=both)
        # A codec that selects values before a sparse sum; feedback keeps the other values.
        forced = {looked_up: SELECTED}
        yield Case(name=SELECTED, family="sparse", method="ring+dense", force=forced)
    ratios = ("fft", "daso") if table == "digits" else ("fft",)
    for strategy in TRAINED:
        rule = STRATEGIES[strategy]
        # Left out because exact strategies learn as dense sums do: sync, zero1 to zero3, expert.
        if not (rule.exact or isinstance(rule, PipelineStrategy)):
            own = ratios if strategy == "daso" else ("fft",)
            yield Case(name=strategy, family=strategy, strategy=strategy, ratios=own)
    # The paper has 4 + 4 epochs of 90.
    short: dict[str, Param] = {"warmup": 1, "cooldown": 1}
    yield Case(name="daso-short", family="daso", strategy="daso", params=short, ratios=ratios)
    for skip in SKIPS:
        yield Case(name=f"daso-gs{skip}", family="daso", strategy="daso", params={"gs": skip})


def _pipelines(net: CaseNet) -> Iterator[Case]:
    """Yield strategies with stages; SAMO gets replicas, so that its gradients are exchanged."""
    stages = net.stages
    deep: dict[str, Param] = {"stages": stages, "microbatches": 2 * stages}
    for name in ("gpipe", "1f1b"):
        yield Case(
            name=name, family="pipeline", strategy=name, method="ring+dense", params=dict(deep)
        )
    variants: dict[str, dict[str, Param]] = {
        "greedy": deep,
        "overlapping": {"stages": stages, "microbatches": 1},
        "chunked": {**deep, "chunks": 2},
    }
    for variant, params in variants.items():
        # Two chunks of two stages would be equal to the greedy variant.
        if variant != "chunked" or stages > 2:
            yield Case(
                name=f"local-{variant}",
                family="local",
                strategy="local",
                method="ring+dense",
                params={**params, "variant": variant},
            )
    yield Case(name="adam", family=DENSE, method="ring+dense", optimizer="adam")
    masks: dict[str, dict[str, Param]] = {UNPRUNED: {"pruned": 0.0}, "samo": {"pruned": 0.9}}
    early: dict[str, Param] = {"mask": "early-bird", "warmup": WARM_UP, "whole": net.spared}
    masks |= {early_bird(share): {"pruned": share, **early} for share in net.pruned}
    for name, mask in masks.items():
        yield Case(
            name=name,
            family="samo",
            strategy="samo",
            method="ring+fp16",
            optimizer="adam",
            params={"stages": 2, "microbatches": 4, **mask},
            ratios=("samo",),
        )


def _lossy(name: str) -> Case:
    """Return the case of a lossy method, or of a codec with the simplest exchange that sums it."""
    stem = name.partition(":")[0]
    family = next((f for f, stems in FAMILIES.items() if stem in stems), stem)
    method = name
    if stem not in METHODS and name not in METHODS:
        method = ("ring+" if CODECS[name].addable else "all-gather+") + name
    optimizer = "sgd" if stem in OWN_MOMENTUM else "momentum"
    return Case(name=name, family=family, method=method, optimizer=optimizer)


def plan_of(case: Case, net: CaseNet, hosts: int, lanes: int, scale: float = 1.0) -> Plan:
    """Plan a case without measured numbers, so that the plan is equal on every machine.

    scale: factor on the elements of tensors and buckets.
    """
    # Recorded plans name neither a library nor the precision of the device's peak.
    local = machine_file.load("localhost")
    local = replace(local, library="", device=replace(local.device, precision="float16"))
    machine = resized(local, hosts, lanes)
    request = Request(
        net=net_of(case, net, hosts * lanes).scaled(scale),
        machine=machine,
        strategy=case.strategy,
        params=_params(case, net),
        force=case.force,
        bucket=BUCKET * scale,
    )
    made = given(request, case.method) if case.method else make_plan(request, "ddp-25mb")
    later = {round(case.later * net.steps): case.then} if case.then else {}
    made = scheduled(made, later, case.refresh)
    # The order of additions in MPI's own all-reduce depends on the MPI library.
    methods = ["ring+dense" if x.method == LIBRARY else x.method for x in made.launches]
    launches = tuple(
        replace(x, method=method, reason=None)
        for x, method in zip(made.launches, methods, strict=True)
    )
    return replace(made, launches=launches, iteration=0.0, bound=0.0, planner="convergence")


def _params(case: Case, net: CaseNet) -> dict[str, Param]:
    """Return the strategy's parameters, with optimiser and epochs if it has them."""
    defaults = STRATEGIES[case.strategy].defaults
    found: dict[str, Param] = {}
    if "optimizer" in defaults:
        found["optimizer"] = case.optimizer
    if {"batches", "epochs"} <= set(defaults):
        found |= {"batches": net.period, "epochs": net.periods, "warmup": 2, "cooldown": 2}
    return found | case.params


def rate_of(case: Case, net: CaseNet) -> float:
    """Return the learning rate for a case's optimiser."""
    return net.adam if case.optimizer == "adam" else net.rate


def parts_of(case: Case, ranks: int) -> int:
    """Return the number of pieces of a batch: one per rank, or the microbatches."""
    if not isinstance(STRATEGIES[case.strategy], PipelineStrategy):
        return ranks
    return ranks // int(case.params["stages"]) * int(case.params["microbatches"])


def net_of(case: Case, net: CaseNet, ranks: int) -> Net:
    """Return the net with densities of real batches, and with seconds by the sizes of tensors.

    Forward takes 1 s per element that a batch touches, backward BACKWARD s; see `step_times`. Only
    looked-up tables count as sparse: other zeros depend on rounding, and so on the machine.
    """
    half = case.strategy == "samo"  # its messages are float16
    found = profile_net(NETS[net.name], net.batch // parts_of(case, ranks), half=half)

    def timed(layer: Layer) -> Layer:
        laws = [t.sparsity if t.sparsity.law == "zipf" else Sparsity() for t in layer.tensors]
        pairs = list(zip(layer.tensors, laws, strict=True))
        work = 1.0 + sum(tensor.numel * law.density for tensor, law in pairs)
        tensors = tuple(replace(tensor, sparsity=law) for tensor, law in pairs)
        return replace(layer, tensors=tensors, forward=work, backward=BACKWARD * work)

    layers = tuple(timed(layer) for layer in found.layers)
    source = "densities of real batches; seconds by sizes"
    return replace(found, layers=layers, measured=None, source=source)
