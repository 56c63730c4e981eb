"""Messages between stages that are coded: their bytes and seconds, and what ranks learn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.machine.model import CodecRate, Link
from commsched.plan import file as plan_file
from commsched.program import stages as pipeline
from commsched.program.message_coding import NAMES, MessageCoding
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.train.digest import digest_of, digests_of
from commsched.train.in_process import InProcessTraining
from commsched.train.registry import DATA, NETS
from commsched.train.workers.pipeline import PipelineWorker
from tests.support.learning_pipelines import STEPS, alone, assert_same, plan_of, settings
from tests.support.small_plans import graph, machine, strategy_plan
from tests.test_train import train
from tests.test_train_pipelines import FIXED

NET = "mlp:8:3"


@given(
    name=st.sampled_from(NAMES),
    values=st.integers(1, 5000),
    width=st.sampled_from([2, 4]),
    seed=st.integers(0, 9),
)
def test_a_packet_takes_what_its_message_says(name, values, width, seed):
    coded = MessageCoding(name, width, machine().device).of(width * values)
    content = np.random.default_rng(seed).standard_normal(values).astype(np.float32)
    state = {"rank": 0, "seed": seed, "step": 0, "name": "send/s0-s1/m0"}
    packet = CODECS[name].encode(content, state)
    assert (coded.nbytes, coded.values) == (packet.nbytes, values)
    out = np.empty_like(content)
    CODECS[name].decode(packet, out)
    assert np.abs(out - content).max() <= np.ptp(content) + np.abs(content).max() / 16


def test_messages_that_are_not_coded_stay_as_they_are():
    assert MessageCoding("dense", 4, machine().device).of(4001)[:2] == (4001, "")
    assert MessageCoding("fp16", 4, machine().device).of(0)[:2] == (0, "")


def trained(plan, name=NET, half=False):
    net, wanted = NETS[name], settings("1f1b", half)
    training = InProcessTraining(net, DATA[net.data](0), plan, wanted, PipelineWorker)
    for step in range(STEPS):
        training.step(step)
    values = {}
    for learner in training.learners:
        learner.settle()
        values |= learner.values
    return values, training.sent


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8"])
def test_stages_learn_what_one_process_does_that_rounds_at_the_cut(name):
    plan = plan_of(NET, "1f1b", 2, messages=name)
    _, second = pipeline.grid(plan, STRATEGIES["1f1b"].settings(plan))
    cut = [layer.name for layer in NETS[NET].layers].index(second.layers[0].name)

    def code(values):
        flat, out = values.reshape(-1), np.empty(values.size, np.float32)
        CODECS[name].decode(CODECS[name].encode(flat, {}), out)
        return out.reshape(values.shape)

    found, sent = trained(plan)
    _, rounded = alone(NET, 1, 2, False, cut, code)
    assert_same(found, rounded)
    plain, as_they_are = trained(plan_of(NET, "1f1b", 2))
    assert any(not np.array_equal(found[key], plain[key]) for key in plain)
    assert sent == as_they_are // (4 if name == "fp8" else 2)


@pytest.mark.parametrize("net", [NET, "words:3:20"])  # a sample with 9 values at a cut
def test_halves_are_coded_one_by_one(net):
    """Codec fp16 changes no half, and fp8 takes a byte of each."""
    more = {"stages": 2, "half": True}
    plain, sent = trained(plan_of(net, "1f1b", **more), net, half=True)
    found, as_many = trained(plan_of(net, "1f1b", **more, messages="fp16"), net, half=True)
    assert_same(found, plain)
    assert as_many == sent
    assert trained(plan_of(net, "1f1b", **more, messages="fp8"), net, half=True)[1] == sent // 2


def test_a_plan_that_codes_values_of_another_width_is_refused():
    plan = plan_of(NET, "1f1b", 2, messages="fp8")
    halves = tuple(replace(layer, output=layer.output / 2) for layer in plan.net.layers)
    plan = replace(plan, net=replace(plan.net, layers=halves))
    with pytest.raises(CommschedError, match="codes values of 4 B, but the layers compute in f"):
        trained(plan, half=True)


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "3d", "samo"])
def test_the_seconds_of_a_step_on_two_stages_are_those_of_its_coding(strategy):
    """Free links: the last stage waits for encode and decode, and the first one, too."""
    free = Link(latency=0.0, overhead=0.0, per_byte=0.0, source="test")
    rate = CodecRate(encode=2e-9, add=0.0, decode=3e-9, fixed=1e-4, source="test")
    plain = machine(1, 2)
    device = replace(plain.device, codecs={**plain.device.codecs, "fp16": rate})
    on = replace(plain, inside=free, device=device, handover=0.0, startup=0.0)
    deep = {"pipeline": 2, "tensor": 1} if strategy == "3d" else {"stages": 2}
    net = graph([1000, 1000])
    net = replace(net, layers=tuple(replace(x, output=4e6) for x in net.layers))
    plans = [
        strategy_plan(net, on, strategy, microbatches=1, messages=name, **deep)
        for name in ("dense", "fp16")
    ]
    ends = [simulate(plan, 1).end for plan in plans]
    hops = 2  # activations and their gradients
    values = 4e6 / (2 if strategy == "samo" else 4)  # samo computes in 16 bits
    assert ends[1] - ends[0] == pytest.approx(hops * (2 * 1e-4 + 4 * values * 5e-9), rel=1e-6)
    sends = [
        op
        for role in STRATEGIES[strategy].lower(plans[1], 0, {}).roles
        for op in role.ops
        if op.kind is Kind.SEND
    ]
    assert {op.nbytes for op in sends} == {2 * values}
    assert len(sends) == hops


@pytest.mark.by_day(1)
# Messages of the second net have whole blocks, whose bits are those of the first step.
@pytest.mark.parametrize(("net", "codec"), [(NET, "quant:4"), ("mlp:128:3", "adaqp:4:50")])
def test_ranks_under_mpi_learn_what_one_process_does(net, codec, tmp_path):
    plan = plan_of(net, "1f1b", 2, 2, messages=codec)
    plan_file.write(tmp_path / "plan.json", plan)
    words = ("--net", net, "--plan", str(tmp_path / "plan.json"), *FIXED)
    found = train(4, *words)
    values, sent = trained(plan, net)
    assert found["parameters"] == digest_of(digests_of(values))
    assert found["sent_mean_bytes"] * 4 == pytest.approx(sent / STEPS)


def test_a_codec_of_lists_is_refused():
    with pytest.raises(CommschedError, match=r"messages cannot be 'topk:0\.1'; allowed: dense"):
        strategy_plan(graph([10, 10]), machine(1, 2), "1f1b", stages=2, messages="topk:0.1")
