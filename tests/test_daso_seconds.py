"""What a step of DASO takes: exchanges hide behind batches, ranks wait for the slowest."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.kernels import random
from commsched.machine.model import Link
from commsched.program.model import Kind
from commsched.simulate.engine import simulate
from tests.support.small_plans import daso_plan as made
from tests.support.small_plans import machine

FREE = Link(latency=0.0, overhead=0.0, per_byte=0.0, source="test")


def lags(plan, steps):
    """Of each exchange that is merged later: its length, the wait of its merge, and w batches."""
    ends, starts = {}, {}
    for p in simulate(plan, steps).placed:
        for rank, start, end in zip(p.ranks, p.start, p.end, strict=True):
            ends[int(rank), p.step, p.op.name] = end
            starts[int(rank), p.step, p.op.name] = start
    return starts, ends


@pytest.mark.parametrize("wait", [1, 2, 3])
@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.03, 2.0])
def test_the_exchange_is_hidden_iff_it_takes_no_longer_than_the_wait(wait, ratio):
    """On a clean network: t_glob <= w t_batch (crossover 9 of the facts on DASO)."""
    numel, batch = 10**6, 3e-3
    per_byte = ratio * wait * batch / (2 * (4 - 1) / 4 * 4 * numel)  # a ring over 4 nodes
    slow = Link(latency=0.0, overhead=0.0, per_byte=per_byte, source="test")
    device = replace(machine().device, bandwidth=1e18)
    on = replace(machine(4, 1), between=slow, inside=FREE, device=device)
    plan = made(on=on, sizes=(numel,), gs=4, wait=wait)
    ring = [
        replace(launch, method="ring+dense") if launch.purpose == "cycling" else launch
        for launch in plan.launches
    ]
    starts, ends = lags(replace(plan, launches=tuple(ring)), 12)
    for first in (0, 4):
        took = ends[0, first, "g0/exchange"] - starts[0, first, "g0/exchange"]
        assert took == pytest.approx(ratio * wait * batch, rel=1e-6)
        waited = ends[0, first, "g0/exchange"] - ends[0, first + wait, "b0/apply"]
        assert (waited <= 0) == (ratio <= 1.0)
        late = starts[0, first + wait + 1, "forward/l0"] - ends[0, first + wait, "b0/apply"]
        exposed = max(0.0, (ratio - 1.0) * wait * batch)
        assert late == pytest.approx(exposed, rel=1e-6, abs=1e-9)


def free(nodes, sigma):
    """A machine whose network costs nothing: all that is left is that ranks wait."""
    device = replace(machine().device, bandwidth=1e18)
    return replace(machine(nodes, 1, sigma), between=FREE, inside=FREE, device=device)


def clocks(on, skip, wait, steps, seconds):
    """Each rank's clock after some batches, by the waits of DASO alone: (ranks,) s."""
    clock = np.zeros(on.size)
    begun = {}
    for step in range(steps):
        clock = clock + seconds * random.jitter(on.jitter, 0, step, np.arange(on.size))
        if skip == 0:
            clock = np.full(on.size, clock.max())
            continue
        if wait and step - wait in begun:
            clock = np.maximum(clock, begun[step - wait])
        if step % skip == 0:
            begun[step] = clock.max()
            clock = clock if wait else np.maximum(clock, begun[step])
    return clock


@pytest.mark.parametrize(("skip", "wait"), [(0, 0), (1, 0), (1, 1), (4, 1), (8, 2)])
def test_under_jitter_ranks_wait_for_the_slowest_once_per_exchange(skip, wait):
    on, steps = free(16, 0.3), 24
    found = simulate(made(on=on, gs=skip, wait=wait, sizes=(100,)), steps)
    ends = max(p.end.max() for p in found.placed if p.op.stream == "compute")
    want = clocks(on, skip, wait, steps, 3e-3)
    assert ends == pytest.approx(want.max(), rel=1e-6)


def test_the_gain_under_jitter_grows_with_the_skip():
    on, steps = free(64, 0.3), 33
    took = {
        skip: simulate(made(on=on, gs=skip, wait=min(1, skip), sizes=(100,)), steps).end
        for skip in (0, 1, 4, 8)
    }
    assert took[8] < took[4] < took[1] < took[0]
    factors = np.array([random.jitter(0.3, 0, step, np.arange(64)) for step in range(steps)])
    assert took[0] == pytest.approx(3e-3 * factors.max(axis=1).sum(), rel=1e-6)
    assert took[8] >= 3e-3 * factors.sum(axis=0).max()  # nobody is faster than the slowest alone


def test_thousands_of_ranks_are_alike_without_jitter():
    few, many = (simulate(made(nodes, 4), 6) for nodes in (4, 512))
    local = {p.op.name: p.end - p.start for p in few.placed if p.op.name.startswith("b")}
    for p in many.placed:
        if p.op.name in local and p.op.kind is Kind.EXCHANGE and p.step == 5:
            assert np.ptp(p.end - p.start) < 1e-12
