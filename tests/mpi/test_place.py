"""Runs and trainings whose arrays lie on a device: the same bits, bytes and spans as in NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.errors import Agreed
from commsched.exchange.registry import legal_methods
from commsched.kernels.modules import on_host
from commsched.lab.bench.device_buffers import measured
from commsched.planner.fixed_method import given as planned
from commsched.planner.request import Request
from commsched.run import session
from commsched.run.engine.probe import Arena, ProbeExchanges
from commsched.run.engine.worker import Emulated
from commsched.run.job import agree
from commsched.run.job.store import Store
from commsched.run.session import RunOptions
from commsched.run.wire import placement as place
from commsched.run.wire.device import HOST
from commsched.run.wire.host import PlainPath
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.run.wire.staging import Pointers, StagedPath
from commsched.train.assignment import Assignment, Settings
from commsched.train.packing import unpacked
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.training import Training
from commsched.train.training import TrainOptions as Long
from commsched.train.workers.learner import Learner
from tests.support.late_device import Late
from tests.support.pipeline_plans import staged as pipeline
from tests.support.ranks import WORLD, together
from tests.support.small_plans import graph, machine, plan

SHAPE = (2, WORLD.size // 2) if WORLD.size % 2 == 0 else (1, WORLD.size)
EVERY = [
    method.name
    for method in legal_methods(machine(*SHAPE).everyone)
    if type(method).__module__.startswith("commsched.") and not method.name.startswith("native")
]
SOME = [*EVERY[::7], *(name for name in EVERY if "+" not in name)]  # every one of several phases
CUT = 256


def staged() -> Placement:
    device = Late()
    return Placement(device, StagedPath(device, CUT), PlainPath(CUT), "late")


def pointed() -> Placement:
    device = Late(np)
    return Placement(device, Pointers(device, CUT), PlainPath(CUT), "late")


class Kept(Emulated):
    """Keeps every result, where a run would drop it."""

    def __init__(self, made, rank, module=np):
        super().__init__(made, rank, module)
        self.results = {}

    def result(self, step, launch, values):
        self.results[step, launch] = on_host(values).copy()


def execute(made, folder, where, **options):
    """Run a plan: what was sent by operation, on rank 0, and this rank's results."""
    module = where.device.module
    workers = []

    def worker(made, rank):
        workers.append(Kept(made, rank, module))
        return workers[-1]

    chosen = RunOptions(steps=2, worker=worker, place=where, **options)
    timeline = session.run(made, WORLD, folder / f"{where.device.name}.json", chosen)
    if timeline is None:
        return None, workers[0].results
    names = [timeline.names[i] for i in timeline.name]
    spans = zip(
        timeline.rank.tolist(), names, timeline.step.tolist(), timeline.nbytes.tolist(), strict=True
    )
    return sorted(spans), workers[0].results


@pytest.fixture(scope="module")
def in_memory(shared):
    """A plan, what was sent, and this rank's results, in NumPy."""
    sizes = [40 + 37 * i % 260 for i in range(len(SOME))]
    made = plan(graph(sizes, seconds=1e-4), machine(*SHAPE), SOME)
    return made, execute(made, shared, ON_HOST)


@pytest.mark.by_day(1)
@pytest.mark.groups(3)
@pytest.mark.parametrize("make", [staged, pointed])
def test_a_run_on_a_device_gives_the_results_and_spans_of_one_in_memory(make, in_memory, folder):
    made, here = in_memory
    there = execute(made, folder, make())
    problems = [] if here[0] == there[0] else ["other spans, or bytes"]
    problems += [
        f"step {step}, {made.launches[launch].method}: other bits"
        for (step, launch), values in here[1].items()
        if not np.array_equal(values, there[1][step, launch])
    ]
    together(problems if here[1] else ["no results"])


def test_what_a_device_sums_is_verified(folder):
    names = ["ring+dense", "native+dense", "all-gather+coo", "powersgd:2"]
    made = plan(graph([300, 200, 77, 400], seconds=1e-4), machine(*SHAPE), names)
    execute(made, folder, staged(), verify=True)


@pytest.mark.by_day(1)
@pytest.mark.groups(4)
@pytest.mark.parametrize(("strategy", "make"), [("gpipe", staged), ("local", pointed)])
def test_a_run_of_stages_sends_the_same_messages_from_a_device(strategy, make, folder):
    made = pipeline(strategy, *SHAPE[::-1], on=machine(*SHAPE), microbatches=3)
    ring = (replace(launch, method="ring+dense") for launch in made.launches)
    made = replace(made, launches=tuple(ring))
    where = make()
    here, there = execute(made, folder, ON_HOST), execute(made, folder, where)
    problems = [] if here[0] == there[0] else ["other spans, or bytes"]
    if SHAPE[1] > 1 and make is staged and not where.device.begun:
        problems.append("nothing was copied")
    together(problems)


def test_without_a_device_nothing_is_staged():
    assert place.choose_placement("cpu", WORLD) is ON_HOST


def test_the_probe_finds_that_messages_of_every_rank_arrive():
    assert place.probe_pointers(Late(np) if WORLD.rank % 2 else HOST, WORLD)


def test_nccl_sums_where_each_rank_has_a_gpu_of_its_own():
    found = place.native_sums_by_nccl(Late(card=str(WORLD.rank)), "auto", WORLD)
    together([] if found == (True, "by NCCL: each rank has a GPU of its own") else [str(found)])
    found = place.native_sums_by_nccl(Late(card=str(WORLD.rank)), "mpi", WORLD)
    together([] if found == (False, "by MPI: COMMSCHED_NATIVE=mpi") else [str(found)])


@pytest.mark.skipif(WORLD.size == 1, reason="one rank shares nothing")
@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Late(), "ranks 0 and 1 share a GPU, which NCCL refuses"),
        (HOST if WORLD.rank == 1 else Late(card=str(WORLD.rank)), "no GPU on rank 1"),
        (Late(card=str(WORLD.rank), lack="no NCCL" * (WORLD.rank == 1)), "no NCCL on rank 1"),
    ],
)
def test_elsewhere_mpi_sums_and_says_why_and_nccl_is_refused(device, why):
    found = place.native_sums_by_nccl(device, "auto", WORLD)
    together([] if found == (False, f"by MPI: {why}") else [str(found)])
    with pytest.raises(Agreed, match=f"COMMSCHED_NATIVE=nccl: {why}; nearest: a GPU for each"):
        place.native_sums_by_nccl(device, "nccl", WORLD)


SETTINGS = Settings(optimizer="momentum", rate=0.05, batch=12)


def trained(folder, where, method, steps, store=None, manifest=False):
    """The parameters after some steps of a small net."""
    net = NETS["mlp:8:2"]
    on = replace(machine(1, WORLD.size), name="m")
    request = Request(net=timeless(profile_net(net, 4)), machine=on, bucket=3000.0)
    made = planned(request, method)
    data = DATA[net.data](0)
    learner = Learner(Assignment(net, data, made, SETTINGS, WORLD.rank, where.device.module))
    kept = Store(store, WORLD, "npz", {"--net": net.name}, made) if store else None
    begun = None
    if kept and manifest:
        begun = kept.last(unpacked)
    elif kept:
        kept.begin()
    options = Long(steps=steps, every=2, timeline=folder / f"{steps}.json")
    training = Training(learner, made, WORLD, None, kept, options, where)
    if begun is not None:
        training.resume(*begun)
    timeline = training.run()
    spans = None if timeline is None else len(timeline)
    return {name: on_host(values).copy() for name, values in learner.values.items()}, spans


def timeless(graph):
    """The same on all ranks and in every run: no measured seconds."""
    layers = [replace(layer, forward=1e-4, backward=1e-4) for layer in graph.layers]
    return replace(graph, layers=tuple(layers))


@pytest.mark.groups(3)
def test_a_training_on_a_device_learns_the_same_and_resumes(folder):
    method = "ring+dense" if WORLD.size < 3 else "all-gather+topk:0.1"
    here, spans = trained(folder, ON_HOST, method, 4)
    trained(folder, staged(), method, 2, folder / "kept")
    there, later = trained(folder, staged(), method, 4, folder / "kept", manifest=True)
    problems = [f"{n}: other bits" for n in here if not np.array_equal(here[n], there[n])]
    if WORLD.rank == 0 and not 0 < later < spans:
        problems.append(f"{later} spans of the second half, {spans} of the whole")
    together(problems)


def test_exchanges_of_a_device_are_timed_to_their_end():
    device = Late()
    where = Placement(device, StagedPath(device, CUT), PlainPath(CUT), "late")
    exchanges = ProbeExchanges(WORLD, Arena(40_000, where))
    exchanges.arena.fill(np.arange(100, dtype=np.float32))
    assert exchanges.seconds("ring", CODECS["dense"], 1000, 0.0) > 0
    copied = agree.gather_numbers(device.begun, WORLD)
    assert WORLD.size == 1 or min(copied) > 0


@pytest.mark.skipif(WORLD.size == 1, reason="a message needs two ranks")
@pytest.mark.parametrize("where", [ON_HOST, staged(), pointed()._replace(direct=True)])
def test_messages_of_a_device_are_timed_beside_a_copy(where):
    found = measured(WORLD, where, 40_000, 0.0)
    times = [found.copy > 0 or WORLD.rank > 0, found.staged > 0, (found.pointed or 0) > 0]
    problems = [] if times == [True, True, where.direct or where is ON_HOST] else [str(found)]
    together(problems)
