"""The crossovers that a right planner shows unasked, each found in what `commsched price` says.

Source: Wang et al., "Zen", OSDI 2025 (1-5); Wang et al., "FFT-based gradient sparsification", HPDC
2020 (6); Singh & Bhatele, IPDPS 2023 (7); Wang et al., "Espresso", EuroSys 2023 (8); Coquelin et
al., "DASO", 2022 (9). On machines whose links have no latency and whose processors take no time:
only bytes count. What headers of 16 to 24 B add to 2^26 elements is in the tolerances.
"""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.exchange.registry import find_method
from commsched.machine import file as machine_file
from commsched.machine.model import CodecRate, Machine
from commsched.net.sparsity import Sparsity
from tests.support import sampling
from tests.test_sparse_methods import FREE, wire_only

NUMEL = 2**26
M = 4.0 * NUMEL  # B
RATE = 1e9  # B/s between nodes
# Seconds per byte of the FFT paper's compressor: 4/600 + 1/71 + 1/67 + 1/30 GB/s.
CODING = (4 / 600 + 1 / 71 + 1 / 67 + 1 / 30) * 1e-9


@pytest.fixture
def ask(capsys, tmp_path):
    """Ask `commsched price` about a machine, and get its JSON."""

    def answer(on: Machine, *options: object, numel: int = NUMEL) -> dict:
        path = tmp_path / "machine.json"
        machine_file.write(path, on)
        words = ["price", numel, "--machine", path, "--json", *options]
        assert main([str(word) for word in words]) == 0
        return json.loads(capsys.readouterr().out)

    return answer


@pytest.fixture
def seconds(ask):
    """The seconds of some methods."""

    def answer(nodes: int, names: str, *options: object, rate: float = RATE, coding: float = 0.0):
        codec = CodecRate(encode=coding, add=0.0, decode=coding, source="test")
        on = wire_only(nodes, dict.fromkeys(CODECS, codec) | {"dense": FREE})
        on = replace(on, between=replace(on.between, per_byte=1 / rate), source="test")
        found = ask(on, "--method", names, *options)["methods"]
        by_name = {each["method"]: each["seconds"] for each in found}
        return [by_name[find_method(name).name] for name in names.split(",")]

    return answer


def crossing(low: float, high: float, above: Callable[[float], bool]) -> float:
    """Where a statement that is false at `low` becomes true, to 2^-16 of the way to `high`."""
    assert not above(low)
    assert above(high)
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


def test_1_gathering_lists_beats_a_ring_below_one_over_the_density(seconds):
    names, wins = "all-gather+coo,ring+dense", []
    for ranks in range(2, 25):
        lists, ring = seconds(ranks, names, "--density", 0.05)
        wins.append(lists < ring)
    assert wins == [ranks < 20 for ranks in range(2, 25)]


@pytest.mark.parametrize(("codec", "ratio"), [("fp16", 2), ("fp8:e4m3", 4), ("topk:0.1", 5)])
def test_2_gathering_what_is_compressed_beats_a_ring_below_twice_the_ratio(codec, ratio, seconds):
    for ranks in (2 * ratio - 1, 2 * ratio + 1):
        packed, ring = seconds(ranks, f"all-gather+{codec},ring+dense")
        assert (packed < ring) == (ranks < 2 * ratio)
    packed, ring = seconds(2 * ratio, f"all-gather+{codec},ring+dense")
    assert packed == pytest.approx(ring, rel=2e-3)  # fp8 has a scale for each block


def test_3_lists_beat_dense_values_on_one_hop_below_a_density_of_one_half(seconds):
    def dense_wins(density):
        lists, dense = seconds(2, "all-gather+coo,all-gather+dense", "--density", density)
        return dense < lists

    assert crossing(0.01, 1.0, dense_wins) == pytest.approx(1 / 2, rel=1e-3)


def test_4_bitmaps_beat_lists_on_the_pull_above_1_in_32_and_dense_values_below_31_in_32(seconds):
    def bitmap_wins(density):
        bitmap, lists = seconds(2, "all-gather+bitmap,all-gather+coo", "--density", density)
        return bitmap < lists

    def dense_wins(density):
        bitmap, dense = seconds(2, "all-gather+bitmap,all-gather+dense", "--density", density)
        return dense < bitmap

    def zen_wins(density):
        zen, lists = seconds(8, "zen,balanced", "--density", density)
        return zen < lists

    assert crossing(0.001, 0.5, bitmap_wins) == pytest.approx(1 / 32, rel=2e-3)
    assert crossing(0.5, 1.0, dense_wins) == pytest.approx(31 / 32, rel=1e-3)
    # Zen pulls lists below, as balanced parallelism always does.
    found = crossing(1e-4, 0.5, zen_wins)
    after = Sparsity(law="uniform", density=found).after(8)
    assert float(after) == pytest.approx(1 / 32, rel=5e-3)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("ranks", [4, 8, 32])
def test_5_balanced_parallelism_beats_centralisation_as_the_growth_says(ranks, seconds):
    def growth(density, merged):
        return float(Sparsity(law="uniform", density=density).after(merged)) / density

    def formula(density):
        left = (ranks - 1) / ranks * (growth(density, ranks) + 1)
        return left < sum(growth(density, 2**i) for i in range(ranks.bit_length() - 1))

    for name in ("doubling+coo", "centralised"):

        def balanced_wins(density, name=name):
            balanced, central = seconds(ranks, f"balanced,{name}", "--density", density)
            return balanced < central

        want = crossing(1e-3, 0.99, formula)
        assert crossing(1e-3, 0.99, balanced_wins) == pytest.approx(want, rel=0.01)


@pytest.mark.parametrize(("gigabits", "least"), [(10, 1.21), (32, 2.23)])
def test_6_compression_pays_above_the_ratio_that_the_network_asks_for(gigabits, least, seconds):
    rate = gigabits / 8 * 1e9

    def loses(share):
        names = f"all-gather+topk:{share:.9f},all-gather+dense"  # of 8 B for each that is kept
        packed, dense = seconds(2, names, rate=rate, coding=CODING)
        return dense < packed

    found = 1 / (2 * crossing(0.01, 0.5, loses))
    assert found == pytest.approx(1 / (1 - 2 * rate * CODING), rel=1e-3)
    assert found == pytest.approx(least, abs=0.005)  # as the paper prints it


def test_6_no_ratio_pays_on_a_network_faster_than_the_compressor(seconds):
    def loses(gigabits):
        names = "all-gather+topk:0.000001,all-gather+dense"
        packed, dense = seconds(2, names, rate=gigabits / 8 * 1e9, coding=CODING)
        return dense < packed

    assert crossing(10.0, 100.0, loses) == pytest.approx(57.9, abs=0.1)  # as the paper says


def test_7_a_pruned_net_needs_less_memory_above_a_quarter(ask):
    def saves(pruned):
        options = ("--strategy", "samo", "--param", f"pruned=0,{pruned}")
        whole, less = ask(replace(wire_only(4), source="test"), *options)["settings"]
        assert whole["state_bytes"] == 20 * NUMEL
        kept = (1 - pruned) * NUMEL
        assert less["state_bytes"] == pytest.approx(24 * kept + 2 * NUMEL, abs=24)  # rounded up
        return less["state_bytes"] < whole["state_bytes"]

    assert crossing(0.01, 0.99, saves) == pytest.approx(0.25, rel=1e-3)


@pytest.mark.by_day(0)
def test_8_a_tensor_that_finishes_before_a_bubble_is_not_compressed(ask):
    on, ranks = replace(wire_only(8), source="test"), 8

    def left_alone(milliseconds):
        options = ("--density", 0.01, "--compute", milliseconds)
        first, *others = ask(on, *options)["methods"]
        assert all(first["exposed_seconds"] <= each["exposed_seconds"] for each in others)
        return not find_method(first["method"]).compresses

    plain = 2 * (ranks - 1) / ranks * M / RATE
    found = crossing(0.0, 2e3 * plain, left_alone)
    assert found == pytest.approx(1e3 * plain, rel=1e-3)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("wait", sampling.some([2, 1], 1))
def test_9_daso_hides_the_global_sum_below_as_many_batches_as_it_waits(wait, ask):
    nodes, lanes = 8, 2
    on = replace(wire_only(1), node_of_rank=tuple(i // lanes for i in range(nodes * lanes)))
    on = replace(on, device=replace(on.device, codecs={"dense": FREE}), source="test")
    whole = 2 * (nodes - 1) / nodes * M / RATE

    def hides(milliseconds):
        options = ("--strategy", "daso", "--param", f"wait={wait}", "--compute", milliseconds)
        [found] = ask(on, *options)["settings"]
        sums = {each["exchange"]: each for each in found["exchanges"]}
        assert sums["cycling"]["seconds"] == pytest.approx(whole, rel=1e-9)
        assert sums["spread"]["exposed_seconds"] == sums["spread"]["seconds"] > 0
        return sums["cycling"]["exposed_seconds"] == 0

    found = crossing(0.0, 2e3 * whole, hides)
    assert wait * found == pytest.approx(1e3 * whole, rel=1e-3)
