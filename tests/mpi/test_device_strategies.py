"""Strategies whose arrays lie on a device learn, bit for bit, what they learn in NumPy."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from commsched.kernels.modules import on_host
from commsched.planner.fixed_method import given as planned
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.run.engine.board import Board
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.messages import Blank, MessageStreams
from commsched.run.engine.recorder import Recorder
from commsched.run.job.store import Store
from commsched.run.wire.placement import ON_HOST
from commsched.train.assignment import Assignment, Settings
from commsched.train.job import TRAINED
from commsched.train.packing import unpacked
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.training import Training
from commsched.train.training import TrainOptions as Long
from tests.mpi.test_place import SHAPE, pointed, staged
from tests.support import strict_arrays
from tests.support.pipeline_plans import staged as pipeline
from tests.support.ranks import WORLD, together
from tests.support.small_plans import machine

pytestmark = pytest.mark.groups(4)
STAGES = min(WORLD.size, 4 if WORLD.size % 3 else 3)
BATCH, NET, STEPS = 24, "mlp:8:4", 6
DASO = {"batches": 3, "epochs": 4, "warmup": 1, "cooldown": 1, "gs": 2, "wait": 1}
CASES = {
    "daso": DASO,
    "shadow": {"every": 2, "lag": 1, "rule": "bmuf"},
    "gpipe": {"stages": STAGES, "microbatches": 2},
    "1f1b": {"stages": max(1, STAGES // 2), "microbatches": 2},
    "samo": {"stages": STAGES, "microbatches": 2},
    "local": {"stages": STAGES, "microbatches": 2},
    "local, overlapping": {"stages": STAGES, "variant": "overlapping"},
}


def timed(graph):
    """The same on all ranks and in every run; no two ways to cut it are equally good."""
    layers = [
        replace(layer, forward=2.0**-14 + i * 2.0**-18, backward=2.0**-13)
        for i, layer in enumerate(graph.layers)
    ]
    return replace(graph, layers=tuple(layers))


def plan_of(case):
    """Small buckets, by methods whose bits are defined."""
    strategy, params = case.partition(",")[0], CASES[case]
    half = strategy == "samo"
    parts = WORLD.size // params.get("stages", 1) * params.get("microbatches", 1)
    request = Request(
        net=timed(profile_net(NETS[NET], BATCH // parts, half=half)),
        machine=replace(machine(*SHAPE), name="m"),
        strategy=strategy,
        params=params | ({"head": 1.0} if strategy == "local" else {}),
        bucket=3000.0,
    )
    if isinstance(STRATEGIES[strategy], PipelineStrategy):
        return planned(request, "ring+fp16" if half else "ring+dense")
    made = make_plan(request, "greedy")
    defined = (replace(x, method=x.method.replace("native", "ring")) for x in made.launches)
    return replace(made, launches=tuple(defined))


def settings_of(plan):
    adam = plan.strategy == "samo"
    return Settings(
        optimizer="adam" if adam else "momentum",
        rate=0.01,
        batch=BATCH,
        half=plan.strategy == "samo",
    )


def trained(plan, where, steps=STEPS, store=None, resume=False):
    """The learner after some steps, and its losses."""
    net = NETS[NET]
    worker, module = TRAINED[plan.strategy], where.device.module
    data, wanted = DATA[net.data](0), settings_of(plan)
    learner = worker(Assignment(net, data, plan, wanted, WORLD.rank, module))
    kept = Store(store, WORLD, "npz", {"--net": net.name}, plan) if store else None
    begun = None
    if kept and resume:
        begun = kept.last(unpacked)
    elif kept:
        kept.begin()
    training = Training(learner, plan, WORLD, None, kept, Long(steps=steps), where)
    if begun is not None:
        training.resume(*begun)
    training.run()
    values = {name: on_host(each).copy() for name, each in learner.values.items()}
    return learner, values, [row.loss for row in training.rows]


@cache
def in_memory(case):
    """The same in NumPy, once for all tests."""
    return trained(plan_of(case), ON_HOST)


def differences(here, there):
    """What is not the same, a sentence each."""
    found = [
        f"{name}: other bits"
        for name in here[1]
        if not np.array_equal(here[1][name], there[1][name])
    ]
    return found + ([f"losses {there[2]}, not {here[2]}"] if here[2] != there[2] else [])


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("case", "make"), [*((case, staged) for case in CASES), ("gpipe", pointed), ("daso", pointed)]
)
def test_every_strategy_learns_on_a_device_what_it_learns_in_memory(case, make):
    here, there = in_memory(case), trained(plan_of(case), make())
    problems = differences(here, there)
    values = there[0].values.values()
    if make is staged and not all(isinstance(v, strict_arrays.ndarray) for v in values):
        problems.append("parameters are not on the device")
    together(problems)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("case", ["daso", "shadow", "samo", "1f1b"])
def test_on_a_device_it_goes_on_from_a_checkpoint_to_the_same_bits(case, folder):
    plan, half = plan_of(case), STEPS // 2
    here = in_memory(case)
    trained(plan, staged(), half, folder / "kept")
    there = trained(plan, staged(), STEPS, folder / "kept", resume=True)
    together(differences((None, here[1], here[2][half:]), there))


@pytest.mark.groups(3)
@pytest.mark.skipif(WORLD.size == 1, reason="one rank has no neighbour")
def test_who_waits_for_the_rest_of_a_message_does_not_sleep():
    """The last one of a step; a chunk of it is here."""
    where, recorder = staged(), Recorder(WORLD.rank)
    plan = pipeline("gpipe", WORLD.size, on=machine(1, WORLD.size), microbatches=1)
    messages = MessageStreams(
        plan, WORLD, Board(), recorder, Blank(), DeviceQueue(where.device, recorder), where
    )
    ops = STRATEGIES["gpipe"].lower(plan, 0, {}).role_of(WORLD.rank).ops
    problems, chunk = [], np.zeros(where.path.cut, np.uint8)
    if WORLD.rank == 0:
        (op,) = (op for op in ops if op.kind is Kind.SEND)
        assert op.nbytes > len(chunk)
        messages.comm.Send(chunk, 1, op.tag)
    elif WORLD.rank == 1:
        messages.queues["receive"] += [(0, op) for op in ops if op.match.startswith("send/s0")]
        while not messages._coming:
            messages.progress()
        problems += ["it would sleep"] if not messages.busy else []
        messages._coming.clear()
    messages.comm.Free()
    together(problems)
