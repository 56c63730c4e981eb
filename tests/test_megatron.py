"""Megatron-LM's GPT: its counts, its stages of whole blocks, and the law of its microbatches."""

import pytest

from commsched.lab.reproduce.papers.megatron import MegatronRun, simulated_step
from commsched.lab.reproduce.training_steps import gridded
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net.generate.megatron import megatron
from commsched.net.tensor_cut import cut_net
from commsched.program.stages import block_cuts, grid

SIZES = {"layers": 8, "hidden": 1024, "heads": 16, "sequence": 256, "vocabulary": 4096, "batch": 2}
SMALL = MegatronRun("small", 8, 1024, 16, 2, 4, 8, 0)


def net(**more):
    return megatron("small", **SIZES, **more)


def test_flops_and_parameters_are_those_of_the_paper():
    """Narayanan et al., SC 2021, equations 2 and 3, without recomputation: 3/4 of 96 B s l h^2."""
    layers, h, s, v, b = 8, 1024, 256, 4096, 2
    parameters = 12 * layers * h * h * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)) + 2 * h
    assert net().numel == pytest.approx(parameters)
    flops = 72.0 * b * s * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h))
    assert sum(x.forward_flops + x.backward_flops for x in net().layers) == pytest.approx(flops)


def test_selective_recomputation_repeats_the_attention_and_keeps_no_scores():
    """Korthikanti et al., 2023: a block keeps 5 a s / h of s b h bytes less, four h^2 s^2 more."""
    plain, selective = net(), net(selective=True)
    more = sum(
        b.backward_flops - a.backward_flops
        for a, b in zip(plain.layers, selective.layers, strict=True)
    )
    assert more == pytest.approx(8 * 4.0 * 2 * 256 * 256 * 1024)
    less = sum(
        a.activation - b.activation for a, b in zip(plain.layers, selective.layers, strict=True)
    )
    assert less == pytest.approx(8 * 5.0 * 16 * 256 * 256 * 2)
    block = [x for x in plain.layers if x.block == "h.0"]
    sbh = 256 * 2 * 1024
    assert sum(x.activation for x in block) == pytest.approx(sbh * (34 + 5 * 16 * 256 / 1024))


def test_sequence_parallel_ranks_share_what_is_between_the_matrices():
    whole, shared = (cut_net(net(sequence_parallel=on), 4) for on in (False, True))
    for a, b in zip(whole.layers, shared.layers, strict=True):
        alone = a.name == "ln_f" or a.name.rsplit(".", 1)[-1] in ("ln_1", "ln_2", "residual")
        assert b.forward_bytes == pytest.approx(a.forward_bytes / (4 if alone else 1))
        assert b.activation <= a.activation


def test_stages_have_whole_blocks():
    on = resized(machines.load("dgx-a100"), 1, 8)
    plan = gridded(net(scattered=2), on, tensor=2, pipeline=4, microbatches=4)
    stages = grid(plan, plan.params)
    found = [{layer.block for layer in stage.layers} - {""} for stage in stages]
    assert sum(map(len, found)) == 8
    assert not any(a & b for i, a in enumerate(found) for b in found[:i])
    assert [stage.output for stage in stages] == [256 * 2 * 1024] * 3 + [0]


def test_more_stages_than_blocks_cut_anywhere():
    layers = [x for x in net().layers if x.block in ("h.0", "h.1")]
    assert block_cuts(layers, [1.0] * len(layers), 2) == [0, len(layers) // 2, len(layers)]
    assert len(set(block_cuts(layers, [1.0] * len(layers), 5))) == 6


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("full", "chunks"), [(True, 1), (False, 1), (True, 2)])
def test_every_microbatch_beyond_the_stages_takes_the_same_time(full, chunks):
    """From as many as stages on, or twice as many where stages are interleaved."""
    run = SMALL._replace(full=full, chunks=chunks)
    first, more, many = (simulated_step(run, m * chunks) for m in (4, 6, 20))
    assert many == pytest.approx(first + 8 * (more - first), rel=1e-9)


def test_gradients_of_microbatches_are_added_by_kernels_of_their_own():
    """On each rank, once per microbatch, for all matrices and for the table at both ends."""
    plain, added = net(), net(accumulated=6.0)
    parameters = 12 * 8 * 1024**2 + 2 * 4096 * 1024
    more = sum(x.backward_bytes for x in added.layers) - sum(x.backward_bytes for x in plain.layers)
    assert more == pytest.approx(6.0 * parameters)
    assert added.tensors == plain.tensors
    cut = [cut_net(some, 4) for some in (plain, added)]
    more = sum(x.backward_bytes for x in cut[1].layers) - sum(
        x.backward_bytes for x in cut[0].layers
    )
    assert more == pytest.approx(6.0 * parameters / 4)
    run = SMALL._replace(stages=1)
    without, with_ = (simulated_step(run, 3, accumulated=a) for a in (0.0, 6.0))
    bandwidth = machines.load("dgx-a100").device.bandwidth
    # A single stage adds the gradient of the embedding to that of the head, too.
    whole = 12 * 8 * 1024**2 + 2 * 51200 * 1024
    assert with_ - without == pytest.approx(3 * 6.0 * whole / 2 / bandwidth, rel=1e-6)


@pytest.mark.parametrize(("full", "share"), [(True, 1.0), (False, 0.5)])
def test_sums_of_backward_hide_behind_the_products_of_columns(full, share):
    """Two in each of 8 blocks and one of the head; 2 (p - 1) (L + 2 o + n G / p) each."""
    run = SMALL._replace(stages=1, full=full)
    waited, hidden = (simulated_step(run._replace(hides=on), 3) for on in (False, True))
    inside = machines.load("dgx-a100").inside
    once = inside.latency + 2 * inside.overhead + 2.0 * 2048 * 1024 / 2 * inside.per_byte
    assert waited - hidden == pytest.approx(3 * 17 * share * 2 * once, rel=1e-3)


def test_equally_near_products_differ_by_their_inner_size():
    device = machines.load("dgx-a100").device
    scores, values = device.rate((2048, 128, 2048)), device.rate((2048, 2048, 128))
    assert (scores, values) == pytest.approx((130.182e12, 218.952e12))
