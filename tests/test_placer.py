"""Law 9: planner, simulator and the runtime's own programs place operations at the same moments."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.machine.model import CodecRate
from commsched.planner.request import Request
from commsched.planner.search.prices import PricedRows
from commsched.planner.search.problem import Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.search.timing import iteration
from commsched.planner.space import Candidate, MethodChoice, bucket, spec_of
from commsched.program.model import Kind, Op
from commsched.program.placer import EXCHANGES, StreamQueue, next_head, serve, serve_next
from commsched.program.registry import STRATEGIES
from tests.support import sampling
from tests.support.small_plans import graph, machine

METHODS = {
    "ring+dense",
    "direct+dense",
    "halving-doubling+fp16",
    "doubling+dense",
    "all-gather+bf16",
}
RATE = CodecRate(encode=3e-9, add=1e-9, decode=3e-9, fixed=1e-5, source="test")
ROWS = {Kind.DECIDE: 0, Kind.ENCODE: 1, Kind.EXCHANGE: 2, Kind.DECODE: 3}
BLOCK = 64  # elements: a multiple of the ranks, so that all blocks are equally long


def exact_rows(problem: Problem, choices: tuple[MethodChoice, ...]) -> PricedRows:
    """Launches by their exact prices, and one more that is nothing."""
    clock, made = problem.clock, [choice.bucket for choice in choices]
    seconds = [
        problem.prices.exact(spec_of(c.bucket, problem.request.net), c.method) for c in choices
    ]
    return PricedRows(
        np.array([*(b.ready for b in made), 0.0]),
        np.array([*(b.after for b in made), len(clock.forward)]),
        np.array([*(b.numel * clock.apply for b in made), 0.0]),
        np.stack([*seconds, np.zeros((4, 1))], axis=-1),
        np.array([1] * len(made) + [0]),
        np.zeros((1, len(made) + 1)),  # no machine here has a wake-up,
        np.zeros(len(made) + 1),  # nor seconds of a message
    )


def placed_by_the_runtimes_rule(plan, seconds) -> float:
    """Seconds from the second step's start to the third one's, each rank with its own program."""
    ranks, ends, free, begins = range(plan.machine.size), {}, {}, {}

    def partners(rank: int, step: int, op: Op):
        return ranks if op.kind in EXCHANGES else [rank]

    def inputs(rank: int, step: int, op: Op):
        return [(rank, step - back, name) for name, back in op.after if step >= back]

    def ready(rank: int, step: int, op: Op) -> bool:
        return all(key in ends for key in inputs(rank, step, op))

    def perform(step: int, some, ops) -> None:
        start = [
            max(free.get((r, op.stream), 0.0), *(ends[k] for k in inputs(r, step, op)), 0.0)
            for r, op in zip(some, ops, strict=True)
        ]
        own = ops[0].seconds
        if ops[0].kind in ROWS:
            own = seconds[ROWS[ops[0].kind], ops[0].phase, ops[0].launch]
        for rank, op, begin in zip(some, ops, start, strict=True):
            if op.stream == "compute":
                begins.setdefault((step, rank), begin)
            free[rank, op.stream] = ends[rank, step, op.name] = max(start) + own

    for step in range(3):
        program = STRATEGIES[plan.strategy].lower(plan, step, {})
        queues = {}
        for rank in ranks:
            for op in program.role_of(rank).ops:
                queues.setdefault((rank, op.stream), StreamQueue()).append((step, op))
        serve(queues, partners, ready, perform)
    return max(begins[2, rank] - begins[1, rank] for rank in ranks)


@given(
    sizes=st.lists(st.integers(1, 10**4), min_size=1, max_size=6),
    ranks=st.sampled_from([1, 2, 4, 8]),
    cores=st.sampled_from([0, 2]),
    overlap=st.sampled_from([1.0, 0.7, 0.0]),
    startup=st.sampled_from([0.0, 1e-4]),
    data=st.data(),
)
@settings(max_examples=sampling.examples(40), deadline=None)
def test_planner_simulator_and_the_runtimes_programs_agree(
    sizes, ranks, cores, overlap, startup, data
):
    """Where all ranks end each exchange together: equal links and blocks, no jitter, one phase.

    Besides: hand-overs take no time, and every task has a core. The runtime's rule places
    operations; it has no model of a slower exchange under compute, so that part is without one.
    """
    on = replace(machine(1, ranks), cores=cores * ranks, overlap=overlap, startup=startup)
    on = replace(on, device=replace(on.device, codecs={"fp16": RATE, "bf16": RATE}))
    request = Request(net=graph([BLOCK * n for n in sizes]), machine=on, lossy=("fp16", "bf16"))
    kept = [m for m in request.methods(on.everyone) if m.name in METHODS]
    problem = Problem(request, kept=Shortlist.of(kept))
    choices, left = [], list(problem.tensors)
    while left:
        count = data.draw(st.integers(1, len(left)))
        made = bucket([unit for one in left[:count] for unit in one.units])
        choices.append(MethodChoice(made, data.draw(st.sampled_from(problem.options(made)))))
        left = left[count:]
    candidate = Candidate(tuple(data.draw(st.permutations(choices))), data.draw(st.booleans()))
    rows = exact_rows(problem, candidate.choices)
    index = np.arange(len(choices))[:, None]
    price = problem.evaluator.iterations(rows, index, candidate.late)[0]
    plan = problem.plan(candidate, "test")
    assert price == pytest.approx(iteration(plan), rel=1e-9, abs=0.0)
    if overlap == 1.0:
        own = placed_by_the_runtimes_rule(plan, rows.seconds)
        assert price == pytest.approx(own, rel=1e-9, abs=0.0)


def op(name: str, urgency: int = 0) -> Op:
    return Op(kind=Kind.COMPUTE, name=name, stream="compute", urgency=urgency)


def test_a_stream_serves_the_oldest_step_in_the_order_of_each_urgency():
    ops = [op("late", 1), op("first"), op("second"), op("later", 1)]
    queue = StreamQueue([(1, op("next")), *((0, one) for one in ops)])
    order = []
    while queue:
        order.append([(step, head.name) for step, head in queue.heads()])
        queue.take(*queue.heads()[0])
    assert order == [
        [(0, "first"), (0, "late")],
        [(0, "second"), (0, "late")],
        [(0, "late")],
        [(0, "later")],
        [(1, "next")],
    ]


def test_what_can_begin_first_is_served_and_of_those_that_wait_the_most_urgent():
    heads = [op("urgent"), op("other", 1)]
    assert next_head(0.0, [2.0, 1.0], heads) == 1
    assert next_head(3.0, [2.0, 1.0], heads) == 0  # both have arrived
    assert next_head(0.0, [1.0, 1.0], heads) == 0
    chosen, begin = serve_next(
        np.array([0.0, 3.0]), np.array([[2.0, 2.0], [1.0, np.inf]]), [[0], [1]]
    )
    assert chosen.tolist() == [1, 0]
    assert begin[chosen, [0, 1]].tolist() == [1.0, 3.0]


def test_operations_that_wait_for_each_other_are_named():
    queues = {(0, "compute"): StreamQueue([(0, op("a"))])}
    with pytest.raises(AssertionError, match=r"wait for each other: \['a'\]"):
        serve(queues, lambda party, *_: [party], lambda *_: False, lambda *_: None)
