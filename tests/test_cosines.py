"""Gradients of local losses beside the gradient of the whole net's loss."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.lab.convergence.cases import cases, plan_of
from commsched.lab.convergence.cosines import cosine, cosines, local_gradients
from commsched.lab.convergence.tables import TABLES
from commsched.program.stages import is_head
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.layers.heads import with_heads
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of
from commsched.train.workers.local import LocalLossWorker, last_reads

LOCAL = {case.name: case for case in cases("deep") if case.strategy == "local"}
BOTH = [(table, name) for table in ("deep", "cnn") for name in LOCAL]  # equal blocks, and not


def started(case, table="deep"):
    """The plan, the net, its data, and parameters with those of all heads."""
    known = TABLES[table]
    plan, net = plan_of(case, known, 2, 2), NETS[known.name]
    heads = [layer.name for layer in plan.net.layers if is_head(layer.name)]
    data = DATA[net.data](0)
    return plan, net, data, with_heads(net, heads, last_reads(net, data)).start(0)


@pytest.mark.parametrize(("table", "name"), BOTH)
def test_local_gradients_are_those_by_which_the_strategy_moves_the_parameters(table, name):
    """One step of plain gradient descent moves each parameter by rate times gradient."""
    plan, net, data, values = started(LOCAL[name], table)
    rate, batch = 0.5, TABLES[table].batch
    settings = Settings(optimizer="sgd", rate=rate, batch=batch, steps=1)
    ranks = InProcessTraining(net, data, plan, settings, LocalLossWorker)
    ranks.step(0)
    samples = data.train.of(batch_of(0, 0, batch, len(data.train)))
    found = local_gradients(net, plan, values, data._replace(train=samples))
    assert set(found) == {layer.name for layer in net.layers}
    moved = {}
    for learner in ranks.learners:
        learner.settle()
        moved |= learner.values
    for own in found.values():
        for tensor, gradient in own.items():
            step = (values[tensor] - moved[tensor]) / rate
            # microbatches are added in another order; values near 1 are subtracted
            np.testing.assert_allclose(step, gradient, atol=2e-6)


def test_layers_behind_the_last_cut_follow_the_whole_loss_and_others_do_not():
    for name, behind in (("local-greedy", 2), ("local-chunked", 4)):
        plan, net, data, values = started(LOCAL[name])
        found = [cosines(net, plan, values, data)[layer.name] for layer in net.layers]
        assert found[-behind:] == pytest.approx([1.0] * behind, abs=1e-5)
        assert max(found[:-behind]) < 0.9


def test_one_chunk_is_back_propagation():
    case = LOCAL["local-chunked"]
    plan, net, data, values = started(replace(case, params={**case.params, "chunks": 1}))
    found = cosines(net, plan, values, data)
    assert list(found.values()) == pytest.approx([1.0] * len(net.layers), abs=1e-5)


def test_a_gradient_of_zero_has_no_direction():
    one = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    assert cosine(one, one) == pytest.approx(1.0)
    assert cosine(one, {"a": np.array([0.0, 5.0]), "b": np.array([0.0])}) == 0.0
    assert cosine(one, {"a": np.zeros(2), "b": np.zeros(1)}) == 0.0
