"""Streaming local training is sequential local training, bit for bit, in any order of events."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from tests.support import sampling
from tests.support.local_losses import VARIANTS, Stage, plan_of, sequential

STEPS = 4


def streamed(made, stages, seed):
    """Do operations of all stages and steps in a random order that streams and inputs allow.

    The parameters of all stages, and how many batches the first stage was ahead at most.
    """
    rng = np.random.default_rng(seed)
    workers = [Stage(made, k) for k in range(stages)]
    queues, done, mail, ahead = {}, set(), {}, 0
    at = [0] * stages
    for step in range(STEPS):
        for k, role in enumerate(STRATEGIES["local"].lower(made, step, {}).roles):
            for op in role.ops:
                stream = op.stream if op.kind is not Kind.RECV else f"receive from {op.peer}"
                queues.setdefault((k, stream), []).append((step, op))
    while any(queues.values()):
        able = []
        for (k, stream), queue in queues.items():
            if not queue:
                continue
            step, op = queue[0]
            arrived = op.kind is not Kind.RECV or (step, op.match) in mail
            if arrived and all((k, step - b, name) in done for name, b in op.after):
                able.append((k, stream))
        k, stream = able[rng.integers(len(able))]
        step, op = queues[k, stream].pop(0)
        if op.kind is Kind.SEND:
            mail[step, op.name] = workers[k].outgoing(step, op).copy()
        elif op.kind is Kind.RECV:
            workers[k].incoming(step, op, mail.pop((step, op.match)))
        else:
            workers[k].compute(step, op)
            at[k] = step
            ahead = max(ahead, at[0] - at[-1])
        done.add((k, step, op.name))
    return [worker.block.bits() for worker in workers], ahead


@settings(max_examples=sampling.examples(20), deadline=None)
@pytest.mark.parametrize("variant", VARIANTS)
@given(stages=st.integers(2, 5), seed=st.integers(0, 99))
def test_streaming_is_sequential_local_training_bit_for_bit(variant, stages, seed):
    made = plan_of(variant, stages)
    found, _ = streamed(made, stages, seed)
    assert found == sequential(made, STEPS)


def test_batches_really_stream():
    """Without this the law would say nothing: stages are at work on different batches."""
    made = plan_of("greedy", 4)
    assert max(streamed(made, 4, seed)[1] for seed in range(10)) >= 2


def test_parameters_learn_and_differ_between_variants():
    bits = {variant: sequential(plan_of(variant, 4), STEPS)[0] for variant in VARIANTS}
    start = Stage(plan_of("greedy", 4), 0).block.bits()
    assert all(not after.startswith(start[:144]) for after in bits.values())
    assert bits["greedy"] != bits["overlapping"]
