"""Law 6: sent and left are all gradients, whatever method follows whatever method."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import find_method, legal_methods, phases_of
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.run.engine.worker import Emulated
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.registry import DATA, NETS
from tests.support import small_plans as plans

MACHINE = plans.machine(2, 1)
NUMEL, SWITCH, STEPS = 40, 1, 3
METHODS = [
    method.name
    for method in legal_methods(MACHINE.everyone, more=["topk:0.1", "threshold:0.5"])
    if not method.library  # one process has no sums of the MPI's own
]
# A codec keeps the same along any route, so that each needs only one that can carry it.
FAMILIES = {(name.partition("+")[2] or name).partition(":")[0]: name for name in METHODS}
KEEPERS = [name for name in FAMILIES.values() if find_method(name).keeps]


STRATEGY = [name for name in STRATEGIES if STRATEGIES[name].changes]


class Drawn(Emulated):
    """Hands over drawn gradients and notes the sums of each launch, step by step."""

    def __init__(self, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        self.sums: dict[int, list[np.ndarray]] = {}

    def perform(self, step: int, op: object) -> None:
        """Computes nothing."""

    def result(self, step: int, launch: int, values: np.ndarray) -> None:
        self.sums.setdefault(launch, []).append(values.copy())


def training(strategy: str, pairs: list[tuple[str, str]]) -> InProcessTraining:
    """One bucket for each pair of methods: the second follows the first at step SWITCH."""
    firsts = [first for first, _ in pairs]
    made = plans.plan(plans.graph([NUMEL] * len(pairs), rows=10), MACHINE, firsts, mean=False)
    method = {f"l{i}.weight": later for i, (_, later) in enumerate(pairs)}
    first = {f"l{i}.weight": name for i, name in enumerate(firsts)}
    launches = [replace(x, method=first[x.pieces[0].tensor]) for x in made.launches]
    launches += [
        replace(x, name=f"{x.name}.1", method=method[x.pieces[0].tensor], since=SWITCH)
        for x in launches
    ]
    plan = replace(made, strategy=strategy, launches=tuple(launches))
    return InProcessTraining(
        NETS["mlp:8:2"],
        DATA["digits"](0),
        plan,
        Settings(optimizer="momentum", rate=0.05, batch=12),
        lambda assigned: Drawn(assigned.plan, assigned.rank),
    )


@pytest.mark.by_day(1)
@pytest.mark.parametrize("strategy", STRATEGY)
@pytest.mark.parametrize("later", [list(FAMILIES.values()), METHODS], ids=["codecs", "routes"])
def test_what_a_method_has_kept_goes_on_with_any_other(strategy, later):
    """Every codec and method after all that keep something, every route after one of them."""
    keepers = KEEPERS if len(later) == len(FAMILIES) else KEEPERS[:1]
    pairs = list(product(keepers, later))
    ranks = training(strategy, pairs)
    plan, count = ranks._plan, len(pairs)
    for step in range(SWITCH):
        ranks.step(step)
    kept = [[b.states[i]["lost"].copy() for b in ranks._buckets] for i in range(count)]
    assert all(any(lost.any() for lost in states) for states in kept)
    for step in range(SWITCH, STEPS):
        ranks.step(step)
    for i in range(count):
        launch = plan.launches[count + i]
        method = find_method(launch.method)
        gradients = [worker._gradients[i] for worker in ranks.learners]
        states = fresh_states(
            [g + lost for g, lost in zip(gradients, kept[i], strict=True)], plan.seed, launch.name
        )
        for state in states:
            state["step"] = SWITCH
        run_method(method, plan.spec(launch), plan.group(launch), states)
        sums = ranks.learners[0].sums
        np.testing.assert_array_equal(sums[count + i][0], states[0]["result"], launch.method)
        if not (method.lossless or method.keeps):
            continue  # what such a codec rounds away is gone
        left = sum(b.states[count + i].get("lost", 0) for b in ranks._buckets)
        every = np.float64(STEPS) * sum(np.float64(g) for g in gradients)
        sent = sum(np.float64(one) for one in (*sums[i], *sums[count + i]))
        # Sums of float32, a few of them.
        bound = 1e-5 * np.abs(every).max()
        np.testing.assert_allclose(sent + left, every, 1e-5, bound, err_msg=launch.method)
        assert all("lost" not in b.states[i] for b in ranks._buckets)


def test_a_bucket_is_gathered_once_a_step_whatever_its_first_operation_is():
    """`mask` begins with a vote that reads the gradient."""
    plan = plans.plan(plans.graph([NUMEL]), MACHINE, ["mask"])
    gathered = []

    class Counts(Drawn):
        def gradient(self, step: int, launch: int, out: np.ndarray) -> None:
            gathered.append(step)
            super().gradient(step, launch, out)

    ranks = InProcessTraining(
        NETS["mlp:8:2"],
        DATA["digits"](0),
        plan,
        Settings(optimizer="momentum", rate=0.05, batch=12),
        lambda assigned: Counts(assigned.plan, assigned.rank),
    )
    ops = STRATEGIES["sync"].lower(plan, 0, {}).roles[0].ops
    assert next(op.kind for op in ops if op.launch == 0) is Kind.DECIDE
    assert len(phases_of(plan, 0)) == 1
    for step in range(2):
        ranks.step(step)
    assert gathered == [0] * MACHINE.size + [1] * MACHINE.size
