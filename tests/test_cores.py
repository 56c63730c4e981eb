"""Processor sharing: what the tasks of a rank take of each other, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.machine.model import CodecRate
from commsched.net.measured import PROCESSOR, Measured
from commsched.program.model import CODINGS, Kind
from commsched.program.parts import SLICE
from commsched.simulate.clocks import under_compute
from commsched.simulate.core_sharing import Settling
from commsched.simulate.cores import Tasks, capacities, served, served_beside, waits
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan

HOST = Measured(device=PROCESSOR, source="a test")
DRAWN = st.lists(
    st.tuples(st.floats(0, 20), st.floats(0.1, 10), st.sampled_from([1.0, 0.7, 0.2])),
    min_size=1,
    max_size=7,
)


def settled(tasks: Tasks, capacity: float) -> np.ndarray:
    for _ in range(60):
        tasks = tasks._replace(end=served(tasks, capacity))
    return tasks.end


def tasks_of(rows) -> Tasks:
    start, seconds, demand = (np.array(column, float) for column in zip(*rows, strict=True))
    return Tasks(start, start + seconds, seconds, demand)


def by_events(tasks: Tasks, capacity: float) -> np.ndarray:
    """The ends by an event after the other: water is filled until all have their share."""
    left, end, now = tasks.seconds.copy(), np.zeros(len(tasks.start)), 0.0
    while (left > 0).any():
        on = (left > 0) & (tasks.start <= now)
        share, rest = np.zeros(len(left)), capacity
        modest = sorted(np.flatnonzero(on), key=lambda i: tasks.demand[i])
        for others, i in enumerate(reversed(modest), 1):
            share[i] = others
        for i in modest:
            share[i] = min(tasks.demand[i], rest / share[i])
            rest -= share[i]
        rate = share / tasks.demand
        coming = tasks.start[tasks.start > now] - now
        ending = left[on] / rate[on]
        dt = min([*coming, *ending])
        left[on] -= dt * rate[on]
        now += dt
        done = on & (left <= 1e-12)
        left[done], end[done] = 0.0, now
    return end


@given(rows=DRAWN, capacity=st.sampled_from([1.0, 1.5, 2.0, 3.0]))
def test_tasks_end_as_the_events_of_processor_sharing_say(rows, capacity):
    tasks = tasks_of(rows)
    np.testing.assert_allclose(settled(tasks, capacity), by_events(tasks, capacity), rtol=2e-3)


@pytest.mark.parametrize(
    # At a half of 0.6 the last one's 4 s take 4.8, and the computing lacks half of these.
    ("demand", "ends"),
    [(1.0, [14.0, 10.0]), (0.25, [11.0, 6.0]), (0.6, [12.4, 6.8])],
)
def test_a_task_beside_computing_takes_what_it_wants_up_to_half_a_core(demand, ends):
    tasks = tasks_of([(0.0, 10.0, 1.0), (2.0, 4.0, demand)])
    np.testing.assert_allclose(settled(tasks, 1.0), ends)


def test_with_a_core_for_every_task_nothing_moves_a_bit():
    tasks = tasks_of([(0.0, 10.0, 1.0), (2.0, 4.0, 1.0), (3.0, 0.3, 0.9)])
    assert (served(tasks, 3.0) == tasks.end).all()
    assert (served(tasks, np.inf) == tasks.end).all()


@pytest.mark.parametrize(
    ("cores", "capacity", "alone"), [(0, np.inf, 1.0), (2, 1.0, 0.5), (4, 1.0, 1.0), (6, 1.5, 1.0)]
)
def test_seconds_hold_while_all_ranks_do_the_same(cores, capacity, alone):
    on = replace(machine(1, 4), cores=cores)
    assert (capacities(on) == capacity).all()
    assert on.alone == alone


def test_no_rank_ends_earlier_on_fewer_cores():
    net, on = replace(graph([200_000] * 5, seconds=1e-4), measured=HOST), machine(1, 4)
    on = replace(on, inside=replace(on.inside, busy=0.9))
    ends = []
    for cores in (0, 12, 8, 5, 1):
        made = plan(net, replace(on, cores=cores), ["ring+fp16", "direct+dense"])
        ends.append(simulate(made, 3).timeline().end.max())
    assert ends == sorted(ends)
    assert ends[-1] > ends[0]


@pytest.mark.parametrize("busy", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("on_cores", [False, True])
def test_a_rank_gets_no_more_processor_time_than_there_is(busy, on_cores):
    """Law 5: at every moment the spans of a rank have the service that the cores can give."""
    on = machine(2, 2)
    on = replace(on, cores=2, between=replace(on.between, busy=busy))
    net = replace(graph([400_000] * 6, seconds=1e-3), measured=HOST if on_cores else None)
    wanted, free = (
        simulate(plan(net, replace(on, cores=cores), ["ring+fp16"]), 3) for cores in (2, 0)
    )
    need = np.zeros(4)  # s of a core
    for placed in free.placed:
        seconds = placed.end - placed.start
        if placed.op.kind in CODINGS:
            need[placed.ranks] += seconds
        elif placed.op.kind in (Kind.COMPUTE, Kind.APPLY):
            need[placed.ranks] += on_cores * seconds
        elif placed.op.kind is Kind.EXCHANGE:
            need[placed.ranks] += busy * seconds
    end = wanted.timeline().end.max()
    assert end >= need.max() * (1 - 5e-3)
    assert end >= free.timeline().end.max() * (1 - 1e-9)
    lasted = [
        sum((x.end - x.start).sum() for x in one.placed if x.op.kind is Kind.COMPUTE)
        for one in (wanted, free)
    ]
    assert lasted[0] > lasted[1] if on_cores else lasted[0] == pytest.approx(lasted[1])


def test_the_work_before_a_vote_takes_a_core():
    """Law 5: gathering, votes and coding of a method that decides share the only core."""
    net, on = graph([400_000] * 4, seconds=1e-6), machine(1, 2)
    apart, together = (
        simulate(plan(net, replace(on, cores=cores), ["mask"]), 2) for cores in (0, 2)
    )
    coding = np.zeros(2)  # s of a core
    for placed in apart.placed:
        if placed.op.kind in (*CODINGS, Kind.DECIDE):
            coding[placed.ranks] += placed.end - placed.start
    assert together.timeline().end.max() >= coding.max()
    decides = [
        sum((x.end - x.start).sum() for x in one.placed if x.op.kind is Kind.DECIDE)
        for one in (apart, together)
    ]
    assert decides[1] > decides[0]


def test_waiting_for_a_late_rank_takes_no_core():
    """A late rank's exchange is slowed from when the last rank has come, as is everyone's."""
    net = replace(graph([400_000], seconds=5e-3), measured=HOST)  # no other layer
    on = machine(2, 1)
    on = replace(on, cores=1, jitter=0.8, between=replace(on.between, busy=1.0))
    apart, together = (
        simulate(plan(net, replace(on, cores=cores), ["ring+dense"]), 1) for cores in (0, 1)
    )
    assert any(one.op.kind is Kind.COMPUTE for one in apart.placed)
    for one, other in zip(apart.placed, together.placed, strict=True):
        np.testing.assert_allclose(other.end, one.end)  # only one thread of a rank has work


@pytest.mark.parametrize(
    ("method", "longer"),
    [("ring+dense", 2e-4), ("ring+fp16", 2e-4), ("ring+coo", 8e-4), ("native+dense", 8e-4)],
)
def test_each_message_in_turn_waits_for_its_thread_while_the_rank_computes(method, longer):
    """A ring of two ranks has two messages in turn; nothing computes beside the last exchange."""
    net = graph([1000] * 3, seconds=1e-1)
    on = replace(machine(2, 1), wakeup=1e-4, interpreter=3e-4)
    asleep, computing = (
        [
            (placed.end - placed.start).max()
            for placed in simulate(plan(replace(net, measured=measured), on, [method]), 1).placed
            if placed.op.kind is Kind.EXCHANGE
        ]
        for measured in (None, HOST)
    )
    np.testing.assert_allclose(np.subtract(computing, asleep), [longer, longer, 0.0], atol=1e-9)


@given(rows=DRAWN, cores=st.sampled_from([0.5, 1.0, 2.0]), most=st.sampled_from([0.5, 3.0]))
def test_a_thread_waits_for_a_core_while_tasks_occupy_all_but_not_for_ever(rows, cores, most):
    tasks = tasks_of(rows)
    moments, waited = waits(tasks.start, tasks.end, cores, most)
    grid = np.linspace(tasks.start.min(), tasks.end.max(), 20001)
    busy = ((tasks.start[:, None] <= grid) & (tasks.end[:, None] > grid)).sum(0) >= max(cores, 1)
    later = np.where(busy, np.inf, grid)  # when a core is free again
    free = np.minimum.accumulate(later[::-1])[::-1]
    expected = np.minimum(free - grid, most)[busy].sum() / most * (grid[1] - grid[0])
    got = waited[-1] if len(waited) else 0.0
    assert got == pytest.approx(expected, rel=1e-2, abs=1e-2)
    assert (np.diff(moments) >= 0.0).all()


def test_messages_wait_beside_coding_if_no_core_is_free():
    """A bucket's exchange is as short as ever; that beside the coding of the next one is not."""
    net = graph([200_000, 200_000, 1000], seconds=1e-6)
    lasted = []
    for wakeup in (0.0, 1e-4):
        on = machine(2, 1)
        on = replace(on, cores=1, wakeup=wakeup, between=replace(on.between, busy=0.1))
        placed = simulate(plan(net, on, ["ring+elias"]), 1).placed
        exchanges = [one for one in placed if one.op.kind is Kind.EXCHANGE]
        lasted.append([float((one.end - one.start).max()) for one in exchanges])
    longer = np.subtract(lasted[1], lasted[0])
    assert 0.0 < longer[0] <= 2e-4  # two messages in turn


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_interrupts_take_their_share_before_all_tasks_up_to_half_a_core(share):
    tasks, packets = tasks_of([(0.0, 4.0, 1.0)]), tasks_of([(1.0, 2.0, share)])
    computing = tasks
    for _ in range(60):
        end = served(computing, 1.0, interrupts=packets)
        computing = computing._replace(end=end)
    np.testing.assert_allclose(end, 4.0 + 2.0 * min(share, 0.5), rtol=1e-9)
    np.testing.assert_allclose(served(tasks, 2.0, interrupts=packets), tasks.end)


def test_packets_of_an_exchange_interrupt_the_computing_of_its_rank():
    net = replace(graph([500_000] * 2, seconds=5e-3), measured=HOST)
    ends = []
    for share in (0.0, 0.25):
        on = machine(2, 1)
        on = replace(on, cores=1, between=replace(on.between, interrupts=share))
        placed = simulate(plan(net, on, ["ring+dense"]), 1).placed
        [first, _] = [one for one in placed if one.op.kind is Kind.EXCHANGE]
        ends.append([float(one.end.max()) for one in placed if one.op.name == "backward/l0"])
        hidden = min(float((first.end - first.start).max()), 1e-2 / (1 - share))
    assert ends[1][0] - ends[0][0] == pytest.approx(share * hidden, rel=0.02)


def test_coding_longer_than_a_slice_shares_the_core_with_computing():
    lasted = []
    for numel in (10_000, 100_000_000):
        net = replace(graph([numel] * 2, seconds=0.1), measured=HOST)
        for cores in (0, 1):
            on = replace(machine(2, 1), cores=cores)
            placed = simulate(plan(net, on, ["ring+elias"]), 1).placed
            [first, _] = [one for one in placed if one.op.kind is Kind.ENCODE]
            lasted.append(float((first.end - first.start).max()))
    assert lasted[1] == pytest.approx(lasted[0])
    assert lasted[0] < SLICE < lasted[2]
    assert lasted[3] == pytest.approx(2.0 * lasted[2] - SLICE / 2, rel=0.02)


def test_operations_of_one_stream_follow_each_other_however_late():
    """What delays the first of a queue delays the others by the same, and nothing else does."""
    tasks = tasks_of([(0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (9.0, 1.0, 1.0)])
    other = tasks_of([(0.5, 2.0, 1.0)])
    queue = tasks.queues(np.ones(4, bool))
    np.testing.assert_array_equal(queue, [0, 0, 0, 3])
    end = served_beside(tasks, other, 1.0, queue)
    np.testing.assert_allclose(end[-1] - end[2], 10.0 - end[2])
    assert (np.diff(end[:3]) >= 1.0 - 1e-12).all()
    np.testing.assert_allclose(tasks.times(end, queue)[3], 1.0)
    alone = served_beside(tasks.some(np.array([0, 3])), other, 1.0)
    assert end[0] == pytest.approx(alone[0])


def test_computing_pays_for_what_the_others_have_had_and_does_not_delay_them():
    """Law 5: 3 s of short tasks on the only core take 3 s from the computing, and no more."""
    computing = tasks_of([(0.0, 10.0, 1.0)])
    others = tasks_of([(1.0, 1.0, 1.0), (4.0, 2.0, 1.0)])
    for _ in range(60):
        computing = computing._replace(end=served_beside(computing, others, 1.0))
    np.testing.assert_allclose(computing.end, 13.0, rtol=2e-3)
    np.testing.assert_allclose(served_beside(computing, others, 2.0), 10.0)


@pytest.mark.parametrize("what", [{"dispatch": 1e-3}, {"message": 2.5e-4}])
def test_waking_up_and_messages_take_processor_time_from_the_computing(what):
    net = replace(graph([200_000] * 4, seconds=5e-3), measured=HOST)
    ends = []
    for more in ({}, what):  # in a ring of two a rank sends two messages and receives two
        on = replace(machine(2, 1), cores=1, **more)
        ends.append(simulate(plan(net, on, ["ring+dense"]), 1).timeline().end.max())
    assert ends[1] - ends[0] == pytest.approx(3e-3, rel=0.1)  # nothing computes beside the last


@pytest.mark.parametrize("what", [{}, {"dispatch": 1e-3}, {"message": 2.5e-4}])
def test_an_exchange_that_codes_is_not_slowed_by_its_own_dispatching_and_messages(what):
    lasts = []
    for cores in (0, 1):
        on = replace(machine(2, 1), cores=cores, **what)
        rate = CodecRate(encode=5e-9, add=5e-9, decode=5e-9)
        on = replace(on, device=replace(on.device, codecs={"fp16": rate}))
        placed = simulate(plan(graph([200_000], seconds=5e-3), on, ["ring+fp16"]), 2).placed
        found = [one for one in placed if one.op.kind is Kind.EXCHANGE]
        lasts.append([(one.end - one.start).max() for one in found])
    assert lasts[1] == pytest.approx(lasts[0], rel=1e-9)


def test_nobody_handles_messages_of_an_exchange_that_is_over():
    net = replace(graph([200_000] * 4, seconds=5e-3), measured=HOST)
    ends, lasted = [], 0.0
    for message in (0.0, 1.0, 10.0):  # s, far longer than an exchange
        on = replace(machine(2, 1), cores=1, message=message)
        placed = simulate(plan(net, on, ["ring+dense"]), 2).placed
        ends.append(max(float(one.end.max()) for one in placed))
        if not message:
            lasted = sum(
                float((x.end - x.start).max()) for x in placed if x.op.kind is Kind.EXCHANGE
            )
    assert ends[0] < ends[1] == ends[2] < ends[0] + lasted


@given(
    alone=st.floats(0, 10),
    busy=st.floats(-5, 20),
    overlap=st.sampled_from([0.0, 0.25, 0.8, 1.0]),
    late=st.sampled_from([0.0, 1e-3, 7.0]),
)
def test_a_share_of_an_exchange_moves_on_while_its_rank_computes(alone, busy, overlap, late):
    start, end = np.array([1.0]), np.array([1.0 + alone])
    [got] = under_compute(start, end, np.array([1.0 + busy]), overlap, late)
    covered = min(max(busy, 0.0), got - 1.0)
    alone = end[0] - 1.0
    rate = overlap * alone / (alone + late) if alone else 0.0
    moved = rate * covered + (got - 1.0 - covered)
    assert got >= end[0]
    assert moved == pytest.approx(end[0] - 1.0, rel=1e-9, abs=1e-12)


def test_polling_that_hides_less_makes_steps_longer():
    net = graph([500_000] * 4, seconds=1e-3)
    ends = []
    for overlap in (1.0, 0.9, 0.5):
        made = plan(net, replace(machine(2, 2), overlap=overlap), ["ring+dense"])
        ends.append(simulate(made, 3).timeline().end.max())
    assert ends[0] < ends[1] < ends[2]


@pytest.mark.parametrize("slope", [0.0, -0.5, -1.0])
def test_times_settle_where_tasks_flee_from_each_other(slope):
    settling, key = Settling(), (0, 0, "b0")
    for _ in range(3):
        times = settling.slower.get(key, np.ones(2))
        settling.go({key: np.array([1.5, 2.0]) + slope * (times - [1.5, 2.0])})
    np.testing.assert_allclose(settling.slower[key], [1.5, 2.0], rtol=1e-12)
