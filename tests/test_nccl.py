"""NCCL's trees: our prices beside the times that NCCL itself expects."""

from dataclasses import replace

import pytest

from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.libraries import nccl
from commsched.machine import file
from commsched.machine.library import algorithm_of
from commsched.machine.model import Machine, resized
from commsched.net.bucket import BucketSpec

NATIVE = find_method("native+dense")


def shaped(name: str, nodes: int, lanes: int) -> Machine:
    return replace(resized(file.load(name), nodes, lanes), native=())


def seconds(where: Machine, nbytes: int) -> float:
    return price(NATIVE, BucketSpec.uniform(nbytes // 4), where, where.everyone).exchange


@pytest.mark.parametrize("nbytes", [2**10, 2**14, 2**18, 2**20, 2**21, 2**22])
def test_a_tree_takes_what_nccl_expects_where_nodes_have_many_ranks(nbytes):
    # 71 ranks pass on each line as it comes: a piece that waited at each would take ten times that.
    where = shaped("gb200-nvl72-pair", 2, 72)
    taken = algorithm_of(where, where.everyone, nbytes)
    expected = nccl._choice(where, where.everyone).expected["tree", taken.protocol]
    assert taken.name == "tree"
    assert seconds(where, nbytes) == pytest.approx(expected.seconds(nbytes), rel=0.2)


def test_a_longer_chain_adds_steps_and_no_bytes():
    # 2 nodes, 64 kB by a tree and LL: each further rank adds one step up, one down, and a sum.
    times = []
    for lanes in (16, 32, 64):
        where = shaped("gb200-nvl72-pair", 2, lanes)
        where = replace(where, nic=replace(where.nic, per_node=1))  # pieces of equal lengths
        taken = algorithm_of(where, where.everyone, 2**16)
        assert taken.title == "tree, LL"
        step = taken.inside.step.seconds(where.inside)
        times.append(seconds(where, 2**16) - 2 * (lanes - 1) * step)
    assert times == pytest.approx([times[0]] * 3, rel=0.02)


@pytest.mark.parametrize(
    ("name", "nodes", "ports", "gbits", "nbytes", "published"),
    [
        # NVIDIA/nccl-tests, issue 119: 24 A100, 4 ports of a node at HDR, the peak at 128 MB.
        ("dgx-a100", 3, 4, 200, 2**27, 96e9),
        # Issue 149: about 230 GB/s of an A100's NVLink.
        ("dgx-a100", 1, 8, 200, 2**33, 230e9),
        # traces/micro-benchmarks/all_reduce_perf-2x8-a100.txt: a tree.
        ("dgx-a100", 2, 8, 200, 2**30, 219e9),
        # Issue 290: 46 to 48 GB/s of each port of 400 Gbit/s by a ring, as NVIDIA expects.
        ("h100-8x400", 2, 8, 400, 2**33, 8 * 47e9),
        # Issue 283: 248 nodes of 8 H200, usually around 350 GB/s at 512 MB.
        ("h100-8x400", 248, 8, 400, 2**29, 350e9),
    ],
)
def test_bus_bandwidths_are_near_published_ones(name, nodes, ports, gbits, nbytes, published):
    where = shaped(name, nodes, 8)
    assert where.nic is not None
    where = replace(where, nic=replace(where.nic, per_node=ports, per_byte=8 / (gbits * 1e9)))
    sent = 2 * (where.size - 1) / where.size * nbytes
    assert sent / seconds(where, nbytes) == pytest.approx(published, rel=0.2)


def test_channels_stay_on_their_rails():
    # 16 nodes with 4 of 8 GPUs: one unit of the pod, whose rails carry what switches would.
    rails, switches = (shaped(name, 16, 4) for name in ("superpod-h100", "h100-8x400"))
    for where in rails, switches:
        assert algorithm_of(where, where.everyone, 2**30).title == "ring, Simple"
    assert seconds(rails, 2**30) == pytest.approx(seconds(switches, 2**30), rel=1e-3)


def test_gpus_without_nvlink_send_inside_and_to_other_nodes_in_turn():
    # Each further byte of a tree over 16 nodes leaves the busiest rank twice, and once inside.
    where = shaped("comet", 16, 8)
    taken = algorithm_of(where, where.everyone, 2**21)
    sees, more = taken.on(where), seconds(where, 2**22) - seconds(where, 2**21)
    assert taken.title == "tree, Simple"
    each = 2 * sees.between.per_byte + sees.inside.per_byte
    assert more == pytest.approx(2**21 * each, rel=1e-9)


def test_by_simple_each_rank_of_a_chain_waits_for_the_piece():
    short, long = (shaped("comet", 16, lanes) for lanes in (4, 8))
    taken = algorithm_of(long, long.everyone, 2**16)
    assert taken.title == algorithm_of(short, short.everyone, 2**16).title == "tree, Simple"
    step = taken.inside.step.seconds(long.inside) + 2**15 * taken.on(long).inside.per_byte
    found = seconds(long, 2**16) - seconds(short, 2**16)
    assert found == pytest.approx(2 * 4 * step, rel=1e-9)
