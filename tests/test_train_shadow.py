"""Shadow on real nets: what ranks end with is what one process computes, at fixed step numbers."""

import numpy as np
import pytest

from commsched.train.digest import digest_of, digests_of
from commsched.train.forward_backward import gradients
from commsched.train.optimizers import RATES, find_optimizer
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, part_of
from tests.test_train import WORDS, losses, train

RANKS, STEPS, BATCH = 2, 11, 16
SHADOW = ("--strategy", "shadow")
SHORT = ("--net", "mlp:16:1", "--batch", str(BATCH), "--steps", str(STEPS))
A, R, M = np.float32(0.25), np.float32(0.5), np.float32(0.75)


def words_of(**params: object) -> list[str]:
    return [word for item in params.items() for word in ("--param", "{}={}".format(*item))]


def merged(rule, own, mean, kept):
    """One tensor after a merge, by the formulas in the strategy's description, in float32."""
    if rule == "average":
        return (1 - A) * own + A * mean
    common = kept.get("common", mean)
    if rule == "bmuf":
        kept["speed"] = M * kept.get("speed", np.zeros_like(mean)) + R * (mean - common)
        kept["common"] = common + kept["speed"]
        return (1 - A) * own + A * kept["common"]
    kept["common"] = common + R * (mean - common)
    return (1 - A) * own + A * common


def in_one_process(rule, every, lag):
    """The digest of both ranks' parameters."""
    net = NETS["mlp:16:1"]
    train, optimizer = DATA[net.data](0).train, find_optimizer("momentum")
    values = [net.start(0) for _ in range(RANKS)]
    speeds = [{n: np.zeros_like(v) for n, v in own.items()} for own in values]
    kept = [{n: {} for n in own} for own in values]
    means = {}
    for step in range(STEPS):
        chosen = batch_of(0, step, BATCH, len(train))
        for rank, (own, speed) in enumerate(zip(values, speeds, strict=True)):
            some = train.of(chosen[part_of(BATCH, rank, RANKS)])
            for _, found in gradients(net, own, some.inputs, some.targets)[1]:
                for name, gradient in found.items():
                    word = {"velocity": speed[name]}
                    optimizer.update(own[name], gradient, word, step, RATES["momentum"])
        for what in ("copy", "merge") if lag == 0 else ("merge", "copy"):
            if what == "copy" and (step + 1) % every == 0:
                means[step] = {n: (values[0][n] + values[1][n]) / np.float32(2) for n in values[0]}
            for name, mean in means.pop(step - lag, {}).items() if what == "merge" else ():
                for own, memory in zip(values, kept, strict=True):
                    own[name] = merged(rule, own[name], mean, memory[name])
    return digest_of({f"rank {r:09}": digest_of(digests_of(v)) for r, v in enumerate(values)})


@pytest.mark.parametrize(
    ("rule", "every", "lag"), [("average", 1, 0), ("bmuf", 3, 3), ("easgd", 4, 2)]
)
def test_ranks_end_with_the_bits_of_one_process(rule, every, lag):
    """The sum of two numbers is the same in any order, so that every all-reduce has these bits."""
    params = words_of(rule=rule, every=every, lag=lag, alpha=A, rate=R, momentum=M)
    found = train(RANKS, *SHORT, *SHADOW, *params)
    assert found["parameters"] == in_one_process(rule, every, lag)
    assert found["alike"] is False


def test_with_interpolation_one_and_a_merge_each_step_it_learns_what_one_rank_learns(tmp_path):
    log, alone = tmp_path / "log.jsonl", tmp_path / "alone.jsonl"
    train(1, *WORDS, "--method", "ring+dense", "--optimizer", "sgd", "--log", str(alone))
    words = (*SHADOW, "--optimizer", "sgd", *words_of(every=1, lag=0, alpha=1))
    train(RANKS, *WORDS, *words, "--log", str(log))
    # A mean of parameters that two gradients moved is one moved by their mean, but for float32
    # rounding, 6e-8 each time, which grows over 12 steps.
    assert losses(log) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.by_day(0)
def test_in_16_bits_each_rank_leaves_out_its_own_overflows():
    words = ("--net", "mlp:32:1", "--epochs", "6", "--batch", "32", "--optimizer", "adam")
    found = train(RANKS, *words, *SHADOW, *words_of(rule="easgd"), "--precision", "fp16")
    assert found["held_out_accuracy"] > 0.85
