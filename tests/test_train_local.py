"""Local losses on real nets: streaming over ranks gives the bits of sequential local training."""

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.train.digest import digest_of, digests_of
from commsched.train.forward_backward import ForwardBackward
from commsched.train.layers.heads import pooled, spread, tile_of, with_heads
from commsched.train.optimizers import RATES, find_optimizer
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, part_of
from tests.test_train import train

# A stage per layer, however long each takes here.
STAGES, STEPS, BATCH = 3, 9, 12
NET = "mlp:16:2"
LOCAL = ("--net", NET, "--batch", str(BATCH), "--strategy", "local", "--param", "stages=3")
VARIANTS = {
    "greedy": (("microbatches=2",), [0, 1, 2]),
    "overlapping": (("variant=overlapping",), [0, 1, 2]),
    "two chunks": (("variant=chunked", "chunks=2", "microbatches=2"), [0, 2]),
    "one chunk": (("variant=chunked", "chunks=1", "microbatches=3"), [2]),
}


def words_of(variant: str) -> list[str]:
    return [word for param in VARIANTS[variant][0] for word in ("--param", param)]


def sequential(ends: list[int], microbatches: int, overlapping: bool) -> str:
    """The digest after training one batch after the other; a loss after the layers in `ends`."""
    net = with_heads(NETS[NET], [f"head@s{k}" for k in ends[:-1]], (16,))
    head_of = {k: STAGES + i for i, k in enumerate(ends[:-1])}
    train_data, optimizer = DATA[net.data](0).train, find_optimizer("momentum")
    values = net.start(0)
    speeds = {name: np.zeros_like(v) for name, v in values.items()}
    for step in range(STEPS):
        total: dict[str, np.ndarray] = {}

        def add(found, total=total):
            for name, gradient in found.items():
                total[name] = total[name] + gradient if name in total else gradient

        for m in range(microbatches):
            chosen = batch_of(0, step, BATCH, len(train_data))
            some = train_data.of(chosen[part_of(BATCH, m, microbatches)])
            weight, walks, inputs = 1.0 / (some.targets.size * microbatches), [], some.inputs
            for k in range(STAGES):
                walks.append(ForwardBackward(net, values, inputs))
                walks[k].forward(k)
                inputs = walks[k].values
            again = [walk.copy() for walk in walks]
            for k in reversed(range(STAGES)):
                if k in head_of:
                    walks[k].forward(head_of[k])
                if k in ends:
                    walks[k].score(some.targets, weight)
                else:
                    walks[k].above = walks[k + 1].above
                if k in head_of:
                    add(walks[k].backward(head_of[k]))
                add(walks[k].backward(k))
            for k in range(STAGES - 1) if overlapping else ():
                again[k].above = walks[k + 1].above
                add(again[k].backward(k))
        for name, gradient in total.items():
            kept = {"velocity": speeds[name]}
            optimizer.update(values[name], gradient, kept, step, RATES["momentum"])
    return digest_of(digests_of(values))


@pytest.mark.by_day(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_streaming_over_ranks_gives_the_bits_of_one_process(variant):
    params, ends = VARIANTS[variant]
    microbatches = int(dict(p.split("=") for p in params).get("microbatches", 1))
    found = train(STAGES, *LOCAL, *words_of(variant), "--steps", str(STEPS))
    assert found["parameters"] == sequential(ends, microbatches, variant == "overlapping")


def test_one_chunk_learns_what_back_propagation_learns():
    """The same batch in one piece: the same operations on the same numbers."""
    short = ("--net", NET, "--batch", str(BATCH), "--steps", str(STEPS))
    whole = train(1, *short, "--method", "ring+dense")
    assert sequential([2], 1, False) == whole["parameters"]


@pytest.mark.by_day(0)
def test_replicas_of_stages_share_the_batch_and_the_net_learns():
    """Heads of a small GPT are as large as its own; it comes close to what one loss reaches."""
    words = ("--net", "gpt:16:1:2", "--batch", "16", "--steps", "40", "--optimizer", "adam")
    found = train(4, *words, "--strategy", "local", "--param", "stages=2")
    assert found["held_out_loss"] < 0.85 * np.log(256)


def test_a_head_has_names_of_its_own_and_the_starts_of_its_layer():
    net = with_heads(NETS[NET], ["head@s0"], (16,))
    assert net.layers[-1].tensors.keys() == {"head@s0.output.weight", "head@s0.output.bias"}
    starts = net.start(0)
    assert starts["head@s0.output.weight"].shape == starts["output.weight"].shape
    assert not np.array_equal(starts["head@s0.output.weight"], starts["output.weight"])
    with pytest.raises(CommschedError, match="reads tensor 'embedding"):
        with_heads(NETS["gpt:16:1:2:tied"], ["head@s0"], (64, 16))


def test_a_head_reads_means_of_tiles_where_a_block_gives_more_than_the_last_layer_reads():
    assert tile_of((8, 8, 16), (2, 2, 64)) == (2, 2)
    assert tile_of((4, 4, 32), (2, 2, 64)) in ((1, 2), (2, 1))
    assert tile_of((2, 2, 64), (2, 2, 64)) == (1, 1)
    for given in ((2, 2, 32), (3, 8), (3, 3, 64)):
        with pytest.raises(CommschedError, match="which are no means of"):
            tile_of(given, (2, 2, 64))
    values = np.random.default_rng(0).standard_normal((3, 4, 6, 2))
    means = pooled(values, (2, 3))
    np.testing.assert_allclose(means[1, 1, 0], values[1, 2:, :3].mean(axis=(0, 1)))
    above = np.random.default_rng(1).standard_normal(means.shape)
    # the adjoint of a linear map
    assert (spread(above, (2, 3)) * values).sum() == pytest.approx((above * means).sum())


def test_a_net_of_unequal_blocks_learns_with_heads_that_pool():
    words = ("--net", "cnn:4", "--batch", "32", "--steps", "60", "--rate", "0.05")
    found = train(4, *words, "--strategy", "local", "--param", "stages=4")
    assert found["held_out_loss"] < 0.5 * np.log(10)
