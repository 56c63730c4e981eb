"""Sync over a training: codecs that follow a schedule, and parameters that are broadcast anew."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.fixed_method import given as planned
from commsched.planner.method_schedule import begun, scheduled
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.run.engine.worker import Emulated
from commsched.simulate.engine import simulate
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from tests.support import sampling
from tests.support.small_plans import machine

NET = "mlp:8:2"
TOPK, FFT, DENSE = "all-gather+topk:0.1", "all-gather+fft:0.15", "ring+dense"
SETTINGS = Settings(optimizer="momentum", rate=0.05, batch=12)
PARAMS = {"overlap": ("forward", "backward")}


def plan_of(
    method: str, later: dict[int, str] | None = None, refresh: int = 0, overlap: str = "forward"
) -> Plan:
    """Two buckets on two nodes of two ranks."""
    request = Request(
        net=profile_net(NETS[NET], 3),
        machine=machine(2, 2),
        params={"overlap": overlap},
        bucket=1000.0,
    )
    return scheduled(planned(request, method), later or {}, refresh)


def learners(plan: Plan) -> InProcessTraining:
    return InProcessTraining(NETS[NET], DATA["digits"](0), plan, SETTINGS)


def go(plan: Plan, steps: int) -> InProcessTraining:
    found = learners(plan)
    for step in range(steps):
        found.step(step)
    found.evaluate()  # applies what is there
    return found


class Drawn(Emulated):
    """Hands over the gradients that a run draws, and adds up their sums over the ranks."""

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        self.total: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}

    def perform(self, step: int, op: object) -> None:
        """Computes nothing."""

    def result(self, step: int, launch: int, values: np.ndarray) -> None:
        whole = self._plan.launches[launch].pieces[0].tensor
        self.total[whole] = self.total.get(whole, 0) + values * self._plan.machine.size


@given(
    steps=st.lists(st.integers(1, 12), max_size=3, unique=True),
    refresh=st.integers(0, 5),
    overlap=st.sampled_from(PARAMS["overlap"]),
)
@settings(max_examples=sampling.examples(30), deadline=None)
def test_every_gradient_is_summed_once_a_step_and_applied_once(steps, refresh, overlap):
    plan = plan_of(DENSE, {s: TOPK for s in steps}, refresh, overlap)
    applied: Counter[tuple[int, object]] = Counter()
    last = 14
    for step in range(last + 1):
        role = STRATEGIES["sync"].lower(plan, step, {}).role_of(1)
        names = {op.name for op in role.ops}
        assert len(names) == len(role.ops)  # a name is an operation's identity
        assert names <= set(STRATEGIES["sync"].operations(plan))
        sums = [op for op in role.ops if op.kind is Kind.EXCHANGE and op.root is None]
        summed = [plan.launches[op.launch] for op in sums]
        assert Counter(x.pieces for x in summed) == Counter(x.pieces for x in plan.launches[:2])
        begun = max(s for s in [0, *steps] if s <= step)
        assert {launch.since for launch in summed} == {begun}
        for op in role.ops:
            if op.kind is Kind.APPLY:
                (after,) = op.after
                applied[step - after.steps_back, plan.launches[op.launch].pieces] += 1
        refreshes = any(op.root == 0 for op in role.ops)
        assert refreshes == (refresh > 0 and (step + 1) % refresh == 0)
    whole = {key: n for key, n in applied.items() if key[0] < last}
    assert set(whole.values()) == {1}
    assert len(whole) == 2 * last


@pytest.mark.parametrize("methods", [(TOPK, DENSE), (FFT, TOPK), ("powersgd:1", "ring+bf16")])
def test_what_a_codec_has_kept_goes_on_with_the_next_one(methods):
    """Sent and kept together are all gradients, also where a launch stands for another."""
    plan = plan_of(methods[0], {3: methods[1]})
    plan = replace(plan, launches=tuple(plan.launches))
    ranks = InProcessTraining(
        NETS[NET],
        DATA["digits"](0),
        plan,
        SETTINGS,
        lambda assigned: Drawn(assigned.plan, assigned.rank),
    )
    steps = 6
    for step in range(steps):
        ranks.step(step)
    for index, launch in enumerate(plan.launches[:2]):
        drawn = sum(np.float64(worker._gradients[index]) for worker in ranks.learners)
        kept = sum(
            buckets.states[i].get("lost", 0)
            for buckets in ranks._buckets
            for i, other in enumerate(plan.launches)
            if other.pieces == launch.pieces
        )
        sent = ranks.learners[0].total[launch.pieces[0].tensor]
        # bf16 rounds to 3 digits and keeps nothing; the other sums are float32.
        bound = 4e-3 if methods[1].endswith("bf16") else 1e-5
        error = np.linalg.norm(sent + kept - steps * drawn) / np.linalg.norm(steps * drawn)
        assert error < bound


@pytest.mark.parametrize("first", [TOPK, "all-gather+fft:0.1:forget"])
def test_nothing_dropped_late_is_dense_training_from_there_on(first):
    """After the switch the launch before keeps nothing, and steps are those of dense sums.

    But for what the first codec has kept, which the first dense sum brings.
    """
    plan = plan_of(first, {4: DENSE}, overlap="backward")
    found, dense = go(plan, 6), learners(plan_of(DENSE, overlap="backward"))
    for buckets in found._buckets:
        assert all("lost" not in state for state in buckets.states)
    begun = go(plan, 5)
    for own, other in zip(dense.learners, begun.learners, strict=True):
        own.restore(*other.state(), 5)
    dense.step(5)
    dense.evaluate()
    for own, other in zip(dense.learners, found.learners, strict=True):
        for name, values in own.values.items():
            np.testing.assert_array_equal(values, other.values[name])


@pytest.mark.parametrize("overlap", PARAMS["overlap"])
def test_a_broadcast_changes_nothing_where_ranks_agree(overlap):
    plain, refreshed = (go(plan_of(FFT, None, n, overlap), 7).learners for n in (0, 3))
    for own, other in zip(plain, refreshed, strict=True):
        for name, values in own.values.items():
            np.testing.assert_array_equal(values, other.values[name])


@pytest.mark.parametrize("refresh", [0, 3])
def test_a_broadcast_mends_ranks_that_have_drifted_apart(refresh):
    found = learners(plan_of(DENSE, None, refresh))
    found.learners[2].values["output.bias"] += 1.0
    for step in range(3):
        found.step(step)
    found.evaluate()
    same = [
        np.array_equal(found.learners[0].values[n], found.learners[2].values[n])
        for n in found.learners[0].values
    ]
    assert all(same) == bool(refresh)


def test_simulated_bytes_are_those_of_the_training():
    plan = plan_of("ring+fp16", {3: FFT}, 2)
    predicted = simulate(plan, 6).timeline()
    assert predicted.nbytes.sum() == go(plan, 6).sent
    assert set(predicted.names) == set(STRATEGIES["sync"].operations(plan))


def test_a_schedule_is_in_the_plan_and_in_its_hash(tmp_path):
    plan = plan_of(TOPK, {3: DENSE}, 2)
    plan_file.write(tmp_path / "plan.json", plan)
    again = plan_file.read(tmp_path / "plan.json")
    assert again.launches == plan.launches
    assert [launch.since for launch in again.launches if launch.purpose == ""] == [0, 0, 3, 3]
    hashes = {plan_of(TOPK, {n: DENSE}, k).hash for n in (3, 4) for k in (2, 3)}
    assert len(hashes) == 4


def test_the_first_steps_may_be_dense_and_later_launches_follow_the_plan_s_own():
    plan = begun(plan_of(TOPK), 2, DENSE)
    assert [(x.name, x.method, x.since) for x in plan.launches] == [
        ("b0.0", DENSE, 0),
        ("b1.0", DENSE, 0),
        ("b0", TOPK, 2),
        ("b1", TOPK, 2),
    ]
    more = scheduled(plan, {5: "ring+fp16"}, 0)
    assert [(x.method, x.since) for x in more.launches[4:]] == [("ring+fp16", 5)] * 2
    with pytest.raises(CommschedError, match=r"--later 2=ring.dense: the step must be at least 3"):
        scheduled(plan, {2: DENSE}, 0)
    with pytest.raises(CommschedError, match=r"--first 0=ring.dense: the number of steps"):
        begun(plan, 0, DENSE)


@pytest.mark.parametrize(
    ("later", "refresh", "message"),
    [
        ({0: DENSE}, 0, "--later 0=ring.dense: the step must be at least 1"),
        ({3: "ring+topk:0.1"}, 0, "codec 'topk:0.1' cannot add packets"),
        ({}, -1, "--refresh must be at least 0 steps, got -1"),
    ],
)
def test_what_cannot_be_is_refused(later, refresh, message):
    with pytest.raises(CommschedError, match=message):
        plan_of(TOPK, later, refresh)


def test_other_buckets_and_other_strategies_are_refused():
    plan = plan_of(TOPK, {3: DENSE})
    first, second, third, fourth = plan.launches
    joined = replace(third, pieces=third.pieces + fourth.pieces)
    wrong = replace(plan, launches=(first, second, joined))
    with pytest.raises(CommschedError, match="with pieces of no earlier launch"):
        STRATEGIES["sync"].lower(wrong, 0, {})
    with pytest.raises(CommschedError, match="launches of strategy 'daso' begin at step 0"):
        STRATEGIES["daso"].lower(replace(plan, strategy="daso"), 0, {})
