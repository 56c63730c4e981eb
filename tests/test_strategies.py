"""The exam that every registered strategy takes: legal programs, sound timelines, memory."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.exchange.method import Phase
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.program.model import STREAMS, Kind
from commsched.program.phases import phase_of
from commsched.program.registry import STRATEGIES
from commsched.schedule.rounds import Goal
from commsched.simulate.engine import simulate
from commsched.simulate.timetable import EVERY
from commsched.timeline import check
from tests.support.overlaps import overlaps
from tests.support.small_plans import graph, machine, strategy_plan
from tests.support.strategy_plans import small

STEPS = 14
SHAPES = [(1, 1), (1, 3), (2, 2), (3, 4)]
everywhere = pytest.mark.parametrize("shape", SHAPES, ids=str)
every = pytest.mark.parametrize("name", list(STRATEGIES))


def made(name: str, shape: tuple[int, int]) -> Plan:
    return small(name, *shape, jitter=0.1)


@cache
def found(name: str, shape: tuple[int, int]):
    return simulate(made(name, shape), STEPS)


@pytest.mark.by_day(13)
@every
@everywhere
def test_a_plan_comes_back_from_its_file_as_it_was(name, shape):
    plan = made(name, shape)
    data = plan_file.to_data(plan)
    assert plan_file.to_data(plan_file.from_data(data, "plan")) == data


@pytest.mark.by_day(13)
@every
@everywhere
def test_every_rank_is_in_one_role_and_roles_stay(name, shape):
    plan, strategy = made(name, shape), STRATEGIES[name]
    first = [role.ranks for role in strategy.lower(plan, 0, {}).roles]
    assert sorted(rank for ranks in first for rank in ranks) == list(range(plan.machine.size))
    for step in range(1, STEPS):
        assert [role.ranks for role in strategy.lower(plan, step, {}).roles] == first


@pytest.mark.by_day(13)
@every
@everywhere
def test_operations_have_one_name_each_and_wait_for_what_there_is(name, shape):
    plan, strategy = made(name, shape), STRATEGIES[name]
    known = set(strategy.operations(plan))
    done: dict[int, list[set[str]]] = {}
    for step in range(STEPS):
        program = strategy.lower(plan, step, {})
        for number, role in enumerate(program.roles):
            names = {op.name for op in role.ops}
            assert len(names) == len(role.ops)
            assert names <= known
            done.setdefault(number, []).append(names)
            for op in role.ops:
                assert op.stream in STREAMS
                for after, back in op.after:
                    assert back <= program.reach
                    assert step < back or after in done[number][step - back]


@pytest.mark.by_day(13)
@every
@everywhere
def test_no_step_deadlocks_and_every_operation_is_placed_once(name, shape):
    plan, prediction = made(name, shape), found(name, shape)
    placed = Counter((int(r), p.step, p.op.name) for p in prediction.placed for r in p.ranks)
    assert set(placed.values()) == {1}
    wanted = {
        (rank, step, op.name)
        for step in range(STEPS)
        for role in STRATEGIES[name].lower(plan, step, {}).roles
        for rank in role.ranks
        for op in role.ops
    }
    assert set(placed) == wanted


@pytest.mark.by_day(13)
@every
@everywhere
def test_timelines_are_legal(name, shape):
    prediction = found(name, shape)
    timeline = prediction.timeline()
    assert check.problem(timeline) is None
    assert overlaps(timeline) == []
    ends: dict[tuple[int, int, str], np.ndarray] = {}
    for p in prediction.placed:
        ends[int(p.ranks[0]), p.step, p.op.name] = p.end
    for p in prediction.placed:
        assert (p.end >= p.start).all()
        for name_before, back in p.op.after:
            if p.step >= back:
                assert (p.start >= ends[int(p.ranks[0]), p.step - back, name_before]).all()


@pytest.mark.by_day(13)
@every
@everywhere
def test_the_makespan_is_at_least_every_load_and_the_critical_path(name, shape):
    prediction = found(name, shape)
    timeline = prediction.timeline()
    load = np.zeros((timeline.ranks, len(timeline.streams)))
    np.add.at(load, (timeline.rank, timeline.stream), timeline.end - timeline.start)
    path = prediction.critical_path
    assert prediction.end >= load.max() - 1e-12
    assert prediction.end >= sum(part.seconds for part in path) - 1e-9
    assert all(part.seconds >= 0 for part in path)
    assert path[0].step == 0


@every
def test_an_all_reduce_ends_on_no_rank_before_the_last_of_its_team_has_begun(name):
    plan, prediction = made(name, (3, 4)), found(name, (3, 4))
    begun = {
        (p.step, p.op.name, rank): start
        for p in prediction.placed
        for rank, start in zip(p.ranks.tolist(), p.start.tolist(), strict=True)
    }
    for p in prediction.placed:
        phase = phase_of(plan, p.op) if p.op.kind is Kind.EXCHANGE else None
        if isinstance(phase, Phase) and phase.schedule.goal is Goal.ALL_REDUCE:
            (ranks,) = p.source.times(slice(p.number, p.number + 1), EVERY).last.tolist()
            last = [begun[p.step, p.op.name, rank] for rank in ranks]
            assert (p.end >= last).all()
            assert (p.start <= last).all()


@every
@everywhere
def test_memory_holds_the_model_and_every_buffer(name, shape):
    plan = made(name, shape)
    memory = STRATEGIES[name].memory(plan)
    assert all(part >= 0 for part in memory)
    assert memory.parameters >= 0
    assert memory.total == pytest.approx(sum(memory))
    largest = max(4.0 * plan.spec(launch).numel for launch in plan.launches)
    assert memory.total >= largest


@every
def test_unknown_parameters_are_refused(name):
    net = graph([30])
    with pytest.raises(CommschedError, match=f"strategy '{name}' has no parameter 'nothing'"):
        strategy_plan(net, machine(2, 2), name, nothing=1)
