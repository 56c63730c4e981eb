"""Seconds measured under one load are used under another by the law of shared memory, or warn."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.model import Machine, resized
from commsched.net import file as net_file
from commsched.net.compute import origin
from commsched.net.graph import Layer, Net
from commsched.net.load import on_machine
from commsched.net.measured import Measured
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.timeline.model import Span
from commsched.train import load
from tests.support.jobs import Job
from tests.support.rank_server import on_ranks
from tests.support.small_plans import graph

SHARED = ((1.0, 12e9), (2.0, 10e9), (4.0, 6e9))


def machine(ranks: int, shared: tuple[tuple[float, float], ...] = SHARED) -> Machine:
    found = machine_file.load("localhost")
    device = replace(found.device, name="host")
    return resized(replace(found, device=device, shared_memory=shared), 1, ranks)


def net(ranks: int, alone: float | None, cores: int = 8) -> Net:
    on = Measured(
        device="host", ranks=ranks, threads=1, cores=cores, alone=alone, batch=4, source="s"
    )
    layer = Layer(name="l", forward=1e-3, backward=2e-3)
    return Net(name="n", layers=(layer,), measured=on, optimizer=3e-3, data=4e-3, source="s")


def seconds(of: Net) -> list[float]:
    layer = of.layers[0]
    assert layer.forward is not None
    assert layer.backward is not None
    assert of.optimizer is not None
    return [layer.forward, layer.backward, of.optimizer, of.data]


@given(
    share=st.floats(0.0, 1.0), then=st.sampled_from([2, 3, 4]), now=st.sampled_from([1, 2, 3, 4])
)
def test_what_waits_for_memory_slows_as_a_copy_does(share: float, then: int, now: int) -> None:
    """t(k) = t(1) (1 + m (b(k) - 1)); copies of 1, 2, 3 and 4 ranks take 1, 1.2, 1.6, 2 each."""
    copy = {1: 1.0, 2: 1.2, 3: 1.6, 4: 2.0}
    alone = 1 / (1 + share * (copy[then] - 1))
    made = on_machine(net(then, alone), machine(now))
    want = alone * (1 + share * (copy[now] - 1))
    assert seconds(made) == pytest.approx([n * want * 1e-3 for n in (1, 2, 3, 4)], rel=1e-9)
    lines = origin(made)
    assert len(lines) == 2 * (then != now)
    if lines:
        assert lines[1].endswith(f"instead of {then} ranks: x {want:.3g}")


@pytest.mark.parametrize(
    ("measured", "on", "why"),
    [
        (net(1, None), machine(2), "it was not measured how much one rank alone is faster"),
        (net(2, 0.8), machine(4, ()), "the machine does not say how that many ranks share memory"),
        (net(2, 0.8), machine(8), "the machine does not say how that many ranks share memory"),
        (net(2, 0.8, cores=2), machine(4), "its 2 cores are too few for them"),
        (
            net(2, 0.8),
            machine(4, ((1.0, 1e9), (2.0, 1e9), (4.0, 9e8))),
            "a copy of memory does not say why they slow each other",
        ),
        (net(1, 1.0), machine(2), "one rank alone does not show how ranks slow each other"),
    ],
)
def test_another_load_that_no_law_reaches_is_one_warning(
    measured: Net, on: Machine, why: str
) -> None:
    made = on_machine(measured, on)
    assert seconds(made) == seconds(measured)
    assert f", and {why}: measure it with" in origin(made)[1]
    assert origin(made)[1].endswith("on a node, or its seconds may be far off")


def test_seconds_that_were_asked_for_and_other_devices_keep_their_load() -> None:
    other = replace(machine(4), device=replace(machine(4).device, name="another"))
    for on, choice in ((machine(4), "measured"), (other, "")):
        assert seconds(on_machine(net(2, 0.8), on, choice)) == seconds(net(2, 0.8))


def test_shared_memory_begins_with_one_rank_and_never_gains(tmp_path: Path) -> None:
    machine_file.write(tmp_path / "m.json", machine(4))
    assert machine_file.read(tmp_path / "m.json").shared_memory == SHARED
    for wrong in (((2.0, 1e9),), ((1.0, 1e9), (2.0, 2e9)), ((1.0, 1e9), (1.0, 1e9)), ((1.0, 0.0),)):
        with pytest.raises(CommschedError, match=r"shared_memory.*1 "):
            machine(4, wrong)


def test_a_profile_of_two_ranks_says_under_which_load_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    ended = on_ranks(2, "profile", "mlp:16:1", "--batch", "4", "-o", str(path))
    assert ended.status == 0, ended.output
    assert "2 ranks computing on a node" in ended.output
    found = net_file.read(path)
    on = found.measured
    assert on is not None
    assert (on.ranks, on.batch) == (2, 4)
    assert on.cores >= 1
    assert on.working_set > 3 * found.nbytes  # parameters, gradients, momentum, a bucket
    assert on.alone is not None
    assert found.optimizer
    assert found.data
    assert all(layer.forward and layer.backward for layer in found.layers)


# A profile of ranks, during whose trainings each step is noted as progress.
COUNTED = """
import re
from mpi4py import MPI
from commsched.run.job.watchdog import Watchdog
from commsched.train.profile_job import profile_job

noted, beat, stage = [], Watchdog.beat, Watchdog.stage

def counted(self):
    noted.append(self._what)
    beat(self)

def staged(self, name):
    noted.append(self._what)
    stage(self, name)

Watchdog.beat, Watchdog.stage = counted, staged
wanted = dict(batch=4, optimizer="momentum", half=False, device="cpu", timeout=60.0, threads=1)
net = profile_job("mlp:8:2", **wanted, seconds=0.1, check=lambda _: None)
source = MPI.COMM_WORLD.bcast("" if net is None else net.source)
(steps,) = re.findall(r"of (\\d+) steps", source)
assert noted[noted.index("train") :].count("profile") >= int(steps) > 0
"""


def test_a_profile_may_take_longer_than_its_timeout_because_each_step_is_progress() -> None:
    with Job(2, [sys.executable, "-c", COUNTED]) as job:
        done = job.wait(60.0)
    assert done.status == 0, done.output


def test_a_layer_of_a_profile_lasts_until_the_next_one_begins() -> None:
    """Of a step, all but the wait for the exchange belongs to a layer, the update or the pause."""
    plan = load._alone(graph([8, 8, 8]), "momentum")
    ops = [
        op
        for op in STRATEGIES[plan.strategy].lower(plan, 0, {}).role_of(0).ops
        if op.stream == "compute"
    ]
    lasts, gap, wait, pause, spans, moment = 2e-3, 1e-3, 7e-3, 5e-3, [], 0.0
    for step in range(load.WARM + 2):
        for op in ops:
            moment += wait if op.kind is Kind.APPLY else gap * (op is not ops[0])
            spans.append(Span(0, "compute", op.name, step, moment, moment + lasts, 0.0, 0))
            moment += lasts
        moment += pause
    found = load._seconds_of(plan, spans, 1, np.median)
    layers = [lasts + gap] * 6
    layers[3] = lasts  # the last that is computed: the first layer's backward pass
    np.testing.assert_allclose(found, [*layers, lasts, pause], rtol=1e-9)
