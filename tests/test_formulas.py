"""Formulas of the papers that tests of single methods and strategies leave out.

Where a paper has a start-up of alpha per message, a link has L of latency and o at either end: a
message that waits for the one before costs L + 2 o, one that does not costs o, and the last L + o
more.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.codecs.bloom import filter_bits
from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.exchange.method import Choice
from commsched.exchange.registry import METHODS
from commsched.machine.model import CodecRate, Link, Machine, placement
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.planner.price_strategy import price_strategy
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from tests.support.gradients import group
from tests.support.pipeline_plans import staged
from tests.test_sparse_methods import FREE, WIRE, wire_only

NUMEL = 2**22
M = 4.0 * NUMEL  # B
INSIDE = Link(latency=3e-6, overhead=1e-6, per_byte=1e-10, source="test")
BETWEEN = Link(latency=2e-5, overhead=5e-6, per_byte=1e-9, source="test")


def on(nodes: int, lanes: int, inside: Link, between: Link, **codecs: CodecRate) -> Machine:
    """Two levels, on which coding is free where nothing else is said."""
    made = replace(wire_only(1, dict.fromkeys(CODECS, FREE) | codecs), source="test")
    return replace(made, node_of_rank=placement(nodes, lanes), inside=inside, between=between)


@pytest.mark.parametrize(("nodes", "lanes"), [(2, 4), (4, 8), (8, 2), (3, 4)])
def test_hitopk_costs_what_its_paper_says(nodes, lanes):
    """2 (n - 1) (a1 + 4 N / n b1) + t_topk + (m - 1) a2 + (m - 1) 8 k / n b2.

    Source: Shi et al., MLSys 2021. m nodes of n ranks, k = 0.01 N. a2 = o: messages between nodes
    do not wait for each other.
    """
    select = CodecRate(encode=2e-10, add=0.0, decode=0.0, source="test")
    machine = on(nodes, lanes, INSIDE, BETWEEN, **{"topk:0.01:bisect": select})
    found = price(METHODS["hitopk:0.01"], BucketSpec.uniform(NUMEL), machine, machine.everyone)
    a1, a2 = INSIDE.latency + 2 * INSIDE.overhead, BETWEEN.overhead
    shard = np.ceil(0.01 * NUMEL / lanes)
    dense = 2 * (lanes - 1) * (a1 + M / lanes * INSIDE.per_byte)
    top = M / lanes * select.encode
    packet = 24 + 8 * shard  # B, with its header
    sparse = (nodes - 1) * (a2 + packet * BETWEEN.per_byte)
    last = BETWEEN.latency + BETWEEN.overhead
    assert found.seconds == pytest.approx(dense + top + sparse + last, rel=1e-6)
    messages = 2 * (lanes - 1) + nodes - 1
    assert found.messages == messages


@pytest.mark.parametrize("name", ["zen", "balanced"])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_n_minus_1_messages_each_way_have_their_latency(name, ranks):
    machine = on(ranks, 1, WIRE, replace(BETWEEN, per_byte=0.0))
    found = price(METHODS[name], BucketSpec.uniform(NUMEL, 0.01), machine, machine.everyone)
    assert found.messages == 2 * (ranks - 1)
    way = (ranks - 1) * BETWEEN.overhead + BETWEEN.latency + BETWEEN.overhead
    assert found.seconds == pytest.approx(2 * way, rel=1e-9)


@pytest.mark.parametrize(("nodes", "lanes"), [(4, 2), (8, 4), (2, 8)])
def test_the_exchanges_of_daso_cost_their_formulas(nodes, lanes):
    """Gradients 2 (k - 1) / k M b1, parameters 2 (N - 1) / N M b2, in bf16 half, spread M b1.

    Source: Coquelin et al., 2022, from its description. The chain of the spread has 8 blocks.
    """
    inside, between = replace(WIRE, per_byte=1e-10), WIRE
    found = price_strategy(NUMEL, 1.0, on(nodes, lanes, inside, between), "daso", {}, 0.0)
    seconds = {part.purpose: part.seconds for part in found.sums}
    whole = 2 * (nodes - 1) / nodes * M * between.per_byte
    want = {
        "gradient": 2 * (lanes - 1) / lanes * M * inside.per_byte,
        "blocking": whole / 2,
        "cycling": whole,
        "spread": M * inside.per_byte * (1 + (lanes - 2) / 8),
    }
    assert seconds == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("stages", "replicas", "m"), [(3, 1, 5), (4, 2, 6)])
def test_a_rank_between_others_sends_and_receives_4_messages_per_microbatch(stages, replicas, m):
    """4 B G_inter / (mbs G): SAMO, Singh & Bhatele, IPDPS 2023, of B = m mbs G_data samples."""
    made = staged("samo", stages, replicas, microbatches=m)
    mbs, gpus = 2, stages * replicas
    samples = m * mbs * replicas
    for role in STRATEGIES["samo"].lower(made, 0, {}).roles[1:-1]:
        messages = sum(op.kind in (Kind.SEND, Kind.RECV) for op in role.ops)
        assert messages == 4 * samples * stages / (mbs * gpus)


@pytest.mark.parametrize(
    ("params", "back"),
    [
        ({"variant": "greedy"}, []),
        ({"variant": "overlapping"}, [(1, 0), (2, 1), (3, 2)]),
        ({"variant": "chunked", "chunks": 2}, [(1, 0), (3, 2)]),
    ],
    ids=lambda value: value["variant"] if isinstance(value, dict) else "",
)
def test_local_training_sends_forward_and_back_only_where_a_loss_reaches(params, back):
    """Source: Laskin et al., arXiv 2012.03837."""
    made = staged("local", 4, **params)
    sends = Counter(
        (number, op.peer)
        for number, role in enumerate(STRATEGIES["local"].lower(made, 0, {}).roles)
        for op in role.ops
        if op.kind is Kind.SEND
    )
    assert sends == dict.fromkeys([(0, 1), (1, 2), (2, 3), *back], 1)


@given(density=st.floats(1e-4, 0.99), ranks=st.integers(1, 1000))
def test_even_supports_fill_up_as_independent_draws(density, ranks):
    """E[nnz] = N (1 - (1 - k / N)^P). Source: Renggli et al., "SparCML", SC 2019."""
    law = Sparsity(law="uniform", density=density)
    assert float(law.after(ranks)) == pytest.approx(1 - (1 - density) ** ranks, rel=1e-9)


def test_dsar_switches_above_half_of_the_elements():
    """Source: Renggli et al., "SparCML", SC 2019: dense where nnz > N / 2."""
    _, choice = METHODS["dsar"].phases(BucketSpec.uniform(1000, 0.1), group(1, 4))
    assert isinstance(choice, Choice)
    assert choice.agree == "sum"
    names = [choice.then(filled).payload.codec.name for filled in (0.0, 500.0, 501.0, 1000.0)]
    assert names == ["coo", "coo", "dense", "dense"]
    share = np.array([0.0, 2.0, 0.0, -1.0], np.float32)
    assert choice.vote({"share": share}) == 2.0


@given(count=st.integers(1, 10**6), rate=st.floats(1e-6, 0.5))
def test_a_bloom_filter_of_r_indices_has_minus_r_ln_e_over_ln_2_squared_bits(count, rate):
    """Source: Xu et al., "DeepReduce", NeurIPS 2021."""
    want = -count * np.log(rate) / np.log(2) ** 2
    assert filter_bits(count, rate) == pytest.approx(want, rel=1e-12)
