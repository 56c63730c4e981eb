"""Sparse methods: bytes priced are bytes sent, published formulas, and crossovers by price."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.cost.price import Price, price
from commsched.errors import CommschedError
from commsched.exchange.endpoint import open_endpoint
from commsched.exchange.lockstep import exchange, fresh_states, run_method
from commsched.exchange.method import Choice, Method
from commsched.exchange.registry import METHODS, find_method
from commsched.kernels.merge import listed
from commsched.machine.model import CodecRate, Device, Link, Machine, placement
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support import sampling
from tests.support.gradients import SUPPORTS, gradients, group

FREE = CodecRate(encode=0.0, add=0.0, decode=0.0)
WIRE = Link(latency=0.0, overhead=0.0, per_byte=1e-9, source="test")
SPARSE = [name for name, method in METHODS.items() if method.lossless]


def wire_only(ranks: int, codecs: dict[str, CodecRate] | None = None) -> Machine:
    """One rank per node; only bytes on the wire take time, 1 ns each."""
    device = Device(
        name="free",
        memory=1e12,
        bandwidth=1e30,
        flops=1e15,
        codecs=dict.fromkeys(CODECS, FREE) if codecs is None else codecs,
    )
    return Machine(
        name="wire",
        node_of_rank=placement(ranks, 1),
        inside=WIRE,
        between=WIRE,
        nic=None,
        device=device,
    )


def priced(method: str | Method, spec: BucketSpec, ranks: int) -> Price:
    on = wire_only(ranks)
    found = find_method(method) if isinstance(method, str) else method
    return price(found, spec, on, on.everyone)


def of(law: Sparsity, numel: int) -> BucketSpec:
    return BucketSpec(((law, numel, 0, numel),))


# --- Bytes priced are bytes sent. ---


def sent(method, spec, members, states):
    """Run one launch in this process: bytes that each rank hands over, votes left out, (p,)."""
    total = np.zeros(len(states), np.int64)
    for phase in method.phases(spec, members):
        if isinstance(phase, Choice):
            phase = phase.then(phase.agreed(map(phase.vote, states)))
        held = [open_endpoint(phase, state) for state in states]
        for rank, each in enumerate(held):
            each.take = counted(each.take, total, rank)
        exchange(phase.schedule, held)
        for state, each in zip(states, held, strict=True):
            phase.give(state, each.result())
    return total


def counted(take, total, rank):
    def wrapped(first, stop):
        packet = take(first, stop)
        total[rank] += packet.nbytes
        return packet

    return wrapped


def expected_bytes(method, spec, shape):
    """Mean bytes per rank by price, without the votes of choices."""
    on = replace(wire_only(1), node_of_rank=placement(*shape))
    ranks = on.size
    choices = sum(isinstance(p, Choice) for p in method.phases(spec, on.everyone))
    return price(method, spec, on, on.everyone).sent - 8 * (ranks - 1) * choices


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (4, 1), (2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("name", SPARSE)
def test_bytes_of_a_full_bucket_are_priced_to_the_byte(name, shape):
    method, numel = METHODS[name], 1536
    ranks, spec = shape[0] * shape[1], BucketSpec.uniform(1536)
    states = fresh_states([np.ones(numel, np.float32) for _ in range(ranks)])
    for _ in range(2):  # the second time a state is there
        found = sent(method, spec, group(*shape), states).mean()
    # The length of a hashed part is random; its bits are rounded up to a byte.
    slack = ranks if name == "zen" else 1e-6
    assert found == pytest.approx(expected_bytes(method, spec, shape), abs=slack)


RANDOM = {
    "uniform": Sparsity(law="uniform", density=0.05),
    "zipf": Sparsity(law="zipf", density=0.05, rows=200),
    "mask": Sparsity(law="mask", density=0.05),
    "thin": Sparsity(law="uniform", density=0.002),  # where lists are shorter than bitmaps
}
# On other laws the mask grows until it is the whole bucket.
DRAWN = [
    (name, law)
    for name in (*SPARSE, "ring+elias", "doubling+block", "all-gather+bitmap")
    for law in RANDOM
    if (name != "mask" or law == "mask") and (name == "zen" or law != "thin")
]


@pytest.mark.by_day(6)
@pytest.mark.parametrize(
    ("name", "law", "shape"),
    [
        (*drawn, shape)
        for number, drawn in enumerate(DRAWN)
        for shape in ([(1, 3), (2, 2)] if sampling.whole else [[(1, 3), (2, 2)][number % 2]])
    ],
)
def test_bytes_of_random_supports_are_priced_in_expectation(name, law, shape):
    law = RANDOM[law]
    method, numel, draws, ranks = find_method(name), 4000, 60, shape[0] * shape[1]
    spec, rng = of(law, numel), np.random.default_rng(8)
    sizes = []
    for draw in range(draws):
        seeds = [draw if law.law == "mask" else int(rng.integers(2**40)) for _ in range(ranks)]
        grads = np.zeros((ranks, numel), np.float32)
        for values, seed in zip(grads, seeds, strict=True):
            values[law.support(numel, np.random.default_rng([seed, 1]))] = 1.0
        states = fresh_states([g.copy() for g in grads])
        if name == "mask":
            sent(method, spec, group(*shape), states)  # finds the mask
            for state, values in zip(states, grads, strict=True):
                state["gradient"][:] = values
        sizes.append(sent(method, spec, group(*shape), states).mean())
    # Five standard errors, a byte per packet that is rounded up, 1e-3: rare events.
    slack = 5 * np.std(sizes, ddof=1) / np.sqrt(draws) + 2 * ranks + 1e-3 * np.mean(sizes)
    assert abs(np.mean(sizes) - expected_bytes(method, spec, shape)) <= slack


# --- Published formulas: seconds = bytes received over the rate, coding and latency free. ---
# Source: Wang et al., "Zen", OSDI 2025. M: bytes of the dense tensor; packets have 16 B headers.

NUMEL = 2**20
M = 4 * NUMEL
SIZES = [2, 4, 8, 16]
LAWS = [
    Sparsity(law="uniform", density=0.01),
    Sparsity(law="uniform", density=0.1),
    Sparsity(law="zipf", density=0.02, rows=2**12),
]


def formula(law: Sparsity, ranks: int) -> dict[str, float]:
    """Bytes that the busiest rank receives under each scheme."""
    n, d, dn = ranks, law.density, float(law.after(ranks))
    share = (n - 1) / n
    doublings = range(n.bit_length() - 1)
    return {
        "ring+dense": 2 * share * M,
        "all-gather+coo": 2 * (n - 1) * d * M,
        "balanced": share * (dn / d + 1) * 2 * M * d,
        "doubling+coo": sum(float(law.after(2**i)) / d * 2 * M * d for i in doublings),
        "centralised": sum(float(law.after(2**i)) * 2 * M for i in doublings),
        "zen": share * (2 * d + min(dn + 1 / 32, 2 * dn)) * M,
    }


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.law}-{law.density}")
@pytest.mark.parametrize("ranks", SIZES)
def test_seconds_are_what_the_published_formulas_say(ranks, law):
    for name, nbytes in formula(law, ranks).items():
        found = priced(name, of(law, NUMEL), ranks)
        assert found.seconds == pytest.approx(nbytes * 1e-9, rel=2e-3), name
        assert found.sent == pytest.approx(nbytes, rel=2e-3), name


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.law}-{law.density}")
@pytest.mark.parametrize("ranks", SIZES)
def test_a_sparse_parameter_server_is_as_slow_as_its_skew(ranks, law):
    spec = of(law, NUMEL)
    cuts = spec.cuts(ranks)
    nbytes = 0.0
    for merged in (1, ranks):
        share = spec.nonzeros(cuts[:-1], cuts[1:], merged)
        skew, density = share.max() / share.mean(), float(law.after(merged))
        nbytes += 2 * (ranks - 1) * density * skew * M / ranks
    found = priced("sparse-ps", spec, ranks)
    assert found.seconds == pytest.approx(nbytes * 1e-9, rel=2e-3)
    if law.law == "zipf":
        assert found.seconds > 1.2 * priced("balanced", spec, ranks).seconds
    else:
        assert found.seconds == pytest.approx(priced("balanced", spec, ranks).seconds, rel=1e-3)


def test_splitting_moves_what_a_parameter_server_moves():
    for ranks in SIZES:
        split, server = (
            priced(name, of(LAWS[0], NUMEL), ranks) for name in ("split-all-gather", "sparse-ps")
        )
        assert split.sent == pytest.approx(server.sent, rel=1e-12)


def test_dsar_gathers_values_alone_where_the_sum_has_filled_up():
    spec, ranks = of(Sparsity(law="uniform", density=0.1), NUMEL), 16  # d_16 = 0.81
    dense, sparse = (priced(name, spec, ranks) for name in ("dsar", "split-all-gather"))
    saved = (ranks - 1) / ranks * (2 * float(spec.pieces[0][0].after(ranks)) - 1) * M
    votes = 8 * (ranks - 1)
    assert sparse.sent - dense.sent == pytest.approx(saved - votes, rel=1e-3)


def test_omnireduce_moves_blocks_that_hold_a_non_zero():
    law, ranks = Sparsity(law="uniform", density=0.001), 4
    filled = [1 - (1 - float(law.after(k))) ** 256 for k in (1, ranks)]
    found = priced("omnireduce", of(law, NUMEL), ranks)
    blocks = (ranks - 1) / ranks * sum(filled) * M
    bits = 2 * (ranks - 1) / ranks * NUMEL / 256 / 8
    assert found.sent == pytest.approx(blocks + bits, rel=1e-3)


def test_a_shared_mask_moves_no_index():
    law, ranks = Sparsity(law="mask", density=0.1), 8
    found = priced("mask", of(law, NUMEL), ranks)
    votes = 8 * (ranks - 1)
    assert found.sent == pytest.approx(2 * (ranks - 1) / ranks * 0.1 * M + votes, rel=1e-5)


def test_inside_a_node_zen_is_dense_and_between_nodes_it_serves_what_the_node_has_summed():
    law, nodes, lanes = Sparsity(law="uniform", density=0.01), 4, 8
    on = replace(wire_only(1), node_of_rank=placement(nodes, lanes))
    found = price(METHODS["zen"], of(law, NUMEL), on, on.everyone)
    inside = 2 * (lanes - 1) / lanes * M
    d, dn = (float(law.after(k)) for k in (lanes, nodes * lanes))
    between = (nodes - 1) / nodes * (2 * d + dn + 1 / 32) * M / lanes
    assert found.sent == pytest.approx(inside + between, rel=2e-3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("kind", SUPPORTS)
def test_hierarchical_hashing_sends_the_bytes_of_counting(shape, kind):
    numel, members = 3000, group(*shape)
    spec, found = BucketSpec.uniform(numel, 0.1), []
    for name in ("zen", "zen:hierarchical"):
        states = fresh_states(gradients(kind, members.size, numel))
        nbytes = sent(METHODS[name], spec, members, states)
        found.append((nbytes.tolist(), [state["result"].tolist() for state in states]))
    assert found[0] == found[1]
    priced_at = [expected_bytes(METHODS[name], spec, shape) for name in ("zen", "zen:hierarchical")]
    assert priced_at[0] == priced_at[1]


def test_dealing_by_counting_is_priced_as_the_faster_way():
    on = replace(wire_only(8), device=replace(wire_only(8).device, bandwidth=1e10))
    ways = (METHODS[name] for name in ("zen", "zen:hierarchical"))
    counted, hashed = (price(way, BucketSpec.uniform(NUMEL, 0.01), on, on.everyone) for way in ways)
    assert counted.encode < hashed.encode
    assert replace(hashed, encode=counted.encode) == counted


@pytest.mark.parametrize("word", ["", "counted", "hierarchical:3"])
def test_the_way_of_zen_is_read_strictly(word):
    with pytest.raises(CommschedError, match=r"the way must be one of hierarchical|at most 1"):
        find_method(f"zen:{word}")


# --- Crossovers that a right planner shows unasked. ---


@given(ranks=st.integers(2, 64), density=st.floats(0.002, 0.9))
def test_gathering_lists_beats_a_dense_ring_below_one_over_the_density(ranks, density):
    spec = BucketSpec.uniform(NUMEL, density)
    lists, ring = (priced(name, spec, ranks).seconds for name in ("all-gather+coo", "ring+dense"))
    if abs(ranks * density - 1) > 0.01:  # headers
        assert (lists < ring) == (ranks < 1 / density)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_gathering_at_half_the_bytes_beats_a_dense_ring_below_four_ranks(ranks):
    spec = BucketSpec.uniform(NUMEL)
    half, ring = (priced(name, spec, ranks).seconds for name in ("all-gather+fp16", "ring+dense"))
    assert half == pytest.approx(ring, rel=1e-6) if ranks == 4 else (half < ring) == (ranks < 4)


@given(density=st.floats(0.01, 0.99))
def test_on_one_hop_lists_beat_dense_values_below_one_half(density):
    spec = BucketSpec.uniform(NUMEL, density)
    names = ("all-gather+coo", "all-gather+dense")
    lists, dense = (priced(name, spec, 2).seconds for name in names)
    if abs(density - 0.5) > 0.001:
        assert (lists < dense) == (density < 0.5)


@given(density=st.floats(0.001, 1.0))
def test_on_the_pull_bitmaps_beat_lists_above_1_in_32_and_dense_values_below_31_in_32(density):
    spec = BucketSpec.uniform(NUMEL, density)
    names = ("all-gather+bitmap", "all-gather+coo", "all-gather+dense")
    bitmap, lists, dense = (priced(name, spec, 2).seconds for name in names)
    if abs(density - 1 / 32) > 1e-3:
        assert (bitmap < lists) == (density > 1 / 32)
    if abs(density - 31 / 32) > 1e-3:
        assert (bitmap < dense) == (density < 31 / 32)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
@given(density=st.floats(1e-4, 0.5), overlap=st.floats(0.0, 1.0))
def test_balanced_parallelism_beats_doubling_as_overlap_says(ranks, density, overlap):
    # From no overlap at all, d_k = k d, to the same support everywhere, d_k = d.
    ks = [2**i for i in range(ranks.bit_length())]
    points = [(float(k), min(1.0, density * k ** (1 - overlap))) for k in ks]
    law = Sparsity(law="curve", density=density, curve=((1.0, density), *points[1:]))
    growth = {k: float(law.after(k)) / density for k in ks}
    left = (ranks - 1) / ranks * (growth[ranks] + 1)
    right = sum(growth[k] for k in ks[:-1])
    if abs(left / right - 1) < 0.03:
        return  # headers
    balanced, doubling = (
        priced(name, of(law, NUMEL), ranks).seconds for name in ("balanced", "doubling+coo")
    )
    assert (balanced < doubling) == (left < right)


@pytest.mark.by_day(0)
def test_a_planner_sees_the_two_crossovers_of_gathered_lists_in_the_price_command(capsys, tmp_path):
    """Fewer ranks than 1 / density: lists; more: the ring."""
    from commsched.cli.main import main

    winners = []
    for nodes in (8, 128):
        arguments = ["price", "100000000", "--machine", "p3.16xlarge", "--density", "0.05", "--all"]
        assert main([*arguments, "--nodes", str(nodes), "--lanes", "1"]) == 0
        rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]]
        winners.append(rows.index("all-gather+coo") < rows.index("ring+dense"))
    assert winners == [True, False]


# --- Hierarchical centralisation: whole lists, merged by pairs. ---


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (5, 1), (2, 3), (2, 4)], ids=str)
@pytest.mark.parametrize("kind", SUPPORTS)
def test_lists_are_centralised_from_lists_to_lists(shape, kind):
    method, ranks = METHODS["centralised"], shape[0] * shape[1]
    grads = gradients(kind, ranks, 700)
    states = fresh_states([np.full(700, np.nan, np.float32) for _ in grads])
    for state, values in zip(states, grads, strict=True):
        state["list"] = listed(values)
    run_method(method, of(RANDOM["uniform"], 700), group(*shape), states)
    total = np.sum(grads, axis=0)
    for state in states:
        np.testing.assert_array_equal(state["list"].index, np.flatnonzero(total))
        np.testing.assert_array_equal(state["list"].values, total[total != 0])


@pytest.mark.parametrize("shape", [(1, 2), (5, 1), (2, 3), (2, 4)], ids=str)
def test_centralised_lists_are_what_recursive_doubling_sends(shape):
    ranks, found = shape[0] * shape[1], []
    law = RANDOM["uniform"]
    for name in ("centralised", "doubling+coo"):
        grads = np.zeros((ranks, 4000), np.float32)
        for rank, values in enumerate(grads):
            values[law.support(4000, np.random.default_rng(rank))] = rank + 1
        states = fresh_states(list(grads))
        found.append(sent(find_method(name), of(law, 4000), group(*shape), states))
    np.testing.assert_array_equal(*found)
