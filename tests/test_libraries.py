"""What `native` stands for: each library's algorithm, at the price of our schedule of that name."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import shipped
from commsched.cli.main import main
from commsched.cost.price import exchange, price
from commsched.errors import CommschedError
from commsched.exchange.lockstep import run_method
from commsched.exchange.pair import LIBRARY, route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import find_method
from commsched.libraries import nccl
from commsched.machine import file, library
from commsched.machine.fabric import Fabric
from commsched.machine.library import LIBRARIES, algorithm_of, default_library
from commsched.machine.model import Group, Machine, resized
from commsched.net import file as net_file
from commsched.net.bucket import BucketSpec
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.problem import Problem
from commsched.planner.search.rivals import simulated_up_to
from commsched.schedule.check import check
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.text import dumps
from commsched.simulate.breakdown import makeups
from commsched.simulate.engine import simulate
from commsched.simulate.report import report
from tests.support.exam import fresh_states
from tests.support.small_plans import graph, machine

MACHINES = shipped.names("machines")
SIZES = (1, 100, 4_000, 64_000, 10**6, 6_250_000, 10**8)  # elements
SHAPES = ((1, 8), (2, 3), (4, 6), (16, 8), (5, 1))  # nodes, ranks of each


def on(name: str, nodes: int, lanes: int, kind: str = "") -> Machine:
    """A shipped machine in another size, without measured seconds, with another library."""
    shaped = resized(file.load(name), nodes, lanes)
    return replace(shaped, native=(), library=kind or shaped.library)


def native(where: Machine, numel: int, **changes: float) -> np.ndarray:
    """Ends of an all-reduce by the library, (p,) s."""
    spec, group = BucketSpec.uniform(numel), where.everyone
    schedule = route("native", group)
    payload = Payload.reducing(schedule, find_method(LIBRARY).codec, spec)
    return exchange(schedule, payload, where, group, np.zeros(group.size), **changes).end


@pytest.mark.by_day(6)
@pytest.mark.parametrize("kind", list(LIBRARIES))
@pytest.mark.parametrize("name", MACHINES)
def test_native_costs_what_the_schedule_it_claims_to_be_costs(name, kind):
    for nodes, lanes in SHAPES:
        where = replace(on(name, nodes, lanes, kind), startup=3e-5)
        for numel in SIZES:
            taken = algorithm_of(where, where.everyone, 4.0 * numel)
            method, sees = find_method(f"{taken.collective}+dense"), taken.on(where)
            got, sent = native(where, numel).max(), 0.0
            if taken.pipeline is None:
                spec, left, pieces = BucketSpec.uniform(numel), 0.0, 1.0
            else:
                half = -(-numel // taken.pipeline.trees)
                piece = min(half, int(np.ceil(taken.pipeline.piece / 4)))
                spec, pieces = BucketSpec.uniform(piece), numel / piece
                left = 4.0 * max(numel - taken.pipeline.trees * piece, 0)
                parts = (
                    taken.pipeline.between * sees.between.per_byte,
                    taken.pipeline.inside * sees.inside.per_byte,
                )
                left *= max(parts) if taken.apart else sum(parts)
            ours = price(method, spec, sees, where.everyone)
            assert got == pytest.approx(taken.base + ours.exchange + left, rel=1e-9)
            sent = price(find_method(LIBRARY), BucketSpec.uniform(numel), where, where.everyone)
            assert sent.sent == pytest.approx(ours.sent * pieces, rel=1e-9)


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_an_mpi_costs_exactly_our_schedule(kind):
    for nodes, lanes in SHAPES:
        where = on("localhost", nodes, lanes, kind)
        for numel in SIZES:
            taken = algorithm_of(where, where.everyone, 4.0 * numel)
            found = (
                price(find_method(name), BucketSpec.uniform(numel), where, where.everyone)
                for name in (LIBRARY, f"{taken.collective}+dense")
            )
            assert len({(p.exchange, p.sent) for p in found}) == 1


def test_a_simple_ring_costs_our_ring_and_the_start_of_nccl_at_most():
    seen = 0
    for name in MACHINES:
        for nodes, lanes in SHAPES:
            where = on(name, nodes, lanes, "nccl")
            for numel in SIZES:
                taken = algorithm_of(where, where.everyone, 4.0 * numel)
                if taken.title != "ring, Simple" or name == "localhost":
                    continue
                seen += 1
                ours = price(
                    find_method("ring+dense"), BucketSpec.uniform(numel), where, where.everyone
                )
                assert native(where, numel).max() <= taken.base + ours.exchange * (1 + 1e-9)
    assert seen > 20


def test_24_ranks_of_summit_get_a_ring_and_not_two_foldings():
    where = on("summit", 4, 6)
    spec = BucketSpec.uniform(6_250_000)
    library_, ring, halving = (
        price(find_method(f"{name}+dense"), spec, where, where.everyone)
        for name in ("native", "ring", "halving-doubling")
    )
    assert library_.seconds == pytest.approx(ring.seconds, rel=0.01)
    assert library_.seconds < 0.5 * halving.seconds
    assert library_.sent == pytest.approx(2 * 23 / 24 * 25e6)


@pytest.mark.parametrize(
    ("nodes", "lanes", "nbytes", "want"),
    [
        (1, 8, 1e3, "ring, LL"),
        (1, 8, 1e8, "ring, Simple"),
        (16, 8, 1e3, "tree, LL"),
        (16, 8, 4e6, "ring, LL128"),
        (16, 8, 1e9, "ring, Simple"),
    ],
)
def test_nccl_takes_short_latency_first_and_bandwidth_last(nodes, lanes, nbytes, want):
    where = on("p3dn.24xlarge", nodes, lanes)
    assert algorithm_of(where, where.everyone, nbytes).title == want


def test_nccl_expects_what_its_table_says():
    # 2 nodes of 8 V100 and a port of 12.5 GB/s, 25 MB by a ring and Simple: 8.4 us, 28 steps of
    # 3.4 us inside and 2 of 13 + 2 us, 1.9 times, and 25e6 * 30 / 16 / 12.5e9 s.
    where = on("p3dn.24xlarge", 2, 8)
    place = nccl._place(where, where.everyone)
    far = where.between.latency + 2 * where.between.overhead
    want = 1.9 * (8.4e-6 + 28 * 3.4e-6 + 2 * far) + 25e6 * (30 / 16) / 12.5e9
    assert nccl._expected(place, "ring", "Simple").seconds(25e6) == pytest.approx(want, rel=1e-12)
    # By LL128: 14 us, 1.9 us inside, and as much less between nodes as 14 is more than 4 us.
    steps = 14e-6 + 28 * 1.9e-6 + 2 * (far - 10e-6)
    want = steps + 25e6 * (30 / 16) / (0.92 * 12.5e9)
    assert nccl._expected(place, "ring", "LL128").seconds(25e6) == pytest.approx(want, rel=1e-12)


def test_no_ll128_without_nvlink():
    where = on("comet", 4, 4)
    found = {algorithm_of(where, where.everyone, 4.0 * n).protocol for n in SIZES}
    assert found == {"LL", "Simple"}


def test_a_faster_port_lengthens_no_tree_by_ll():
    ports = [replace(file.load("gb200-nvl72-pair"), native=(), overrides={})]
    ports += [replace(ports[0], nic=replace(ports[0].nic, per_byte=g * 1e-11)) for g in (8, 32)]
    assert {algorithm_of(on, on.everyone, 2.0**20).title for on in ports} == {"tree, LL"}
    fast, middle, slow = (native(on, 2**18).max() for on in ports)
    assert fast <= middle <= slow


def test_every_port_of_a_node_carries_a_channel():
    four, one = on("a100-4xhdr200", 4, 4), on("a100-4xhdr200", 4, 4)
    one = replace(one, nic=replace(one.nic, per_node=1))
    assert algorithm_of(four, four.everyone, 4e8).channels == 4
    assert native(four, 10**8).max() < 0.6 * native(one, 10**8).max()


@pytest.mark.parametrize(
    ("ranks", "nbytes", "want"),
    [
        (4, 2048, "doubling"),
        (4, 2052, "halving-doubling"),
        (1024, 4092, "doubling"),  # fewer values than ranks
        (1024, 4096, "halving-doubling"),
    ],
)
def test_mpich_switches_at_2_kb(ranks, nbytes, want):
    where = on("localhost", 1, ranks, "mpich")
    assert algorithm_of(where, where.everyone, nbytes).collective == want


@pytest.mark.parametrize(
    ("ranks", "nbytes", "want"),
    [
        (3, 4, "ring"),
        (3, 8, "recursive doubling"),
        (3, 65536, "segmented ring"),
        (3, 262144, "Rabenseifner"),
        (4, 8191, "recursive doubling"),
        (8, 8192, "Rabenseifner"),
        (16, 63, "segmented ring"),
        (127, 262143, "recursive doubling"),
        (128, 131071, "reduce and broadcast"),
        (4096, 16384, "recursive doubling"),
        (4096, 32768, "Rabenseifner"),
    ],
)
def test_open_mpi_decides_by_ranks_and_bytes(ranks, nbytes, want):
    where = on("localhost", 1, ranks, "openmpi")
    assert algorithm_of(where, where.everyone, nbytes).title == want


def test_a_machine_without_a_library_gets_that_of_its_mpi_or_device():
    here = dict(hosts=("a",), ranks=(4,), transport="sm", cores=1, processor="x")
    summit, localhost = (replace(file.load(n), library="") for n in ("summit", "localhost"))
    assert [default_library(m) for m in (summit, localhost)] == ["nccl", "mpich"]
    for words, want in (
        ("Open MPI v5.0.11", "openmpi"),
        ("MPICH Version: 5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.13", "mpich"),
    ):
        assert default_library(replace(summit, fabric=Fabric(mpi=words, **here))) == want


def test_every_shipped_machine_names_its_library():
    assert {name: file.load(name).library for name in MACHINES} == {
        name: "mpich" if name in ("localhost", "tpu-v5p-4x4x4") else "nccl" for name in MACHINES
    }


def test_an_unknown_library_is_one_clear_error(tmp_path, capsys):
    path = tmp_path / "m.json"
    file.write(path, replace(file.load("summit"), library="ncll"))
    assert main(["price", "1000", "--machine", str(path), "--method", "ring+dense"]) == 2
    want = "key 'library': no library named 'ncll'; known: mpich, nccl, openmpi; nearest: 'nccl'"
    assert capsys.readouterr().err == f"commsched: {path}: {want}\n"
    with pytest.raises(CommschedError, match=f"^m.json: {want}$"):
        file.from_data(file.to_data(file.load("summit")) | {"library": "ncll"}, "m.json")
    with pytest.raises(CommschedError, match="library must be the name of a library"):
        replace(file.load("summit"), library="Open MPI")


@pytest.mark.parametrize("collective", ["binary-tree:chains", "binary-tree:ranks"])
@given(size=st.integers(1, 40), nodes=st.integers(1, 9), fill=st.booleans())
def test_a_binary_tree_sums_wherever_ranks_are(collective, size, nodes, fill):
    places = (rank * nodes // size if fill else rank % nodes for rank in range(size))
    check(COLLECTIVES[collective](Group(ranks=tuple(range(size)), nodes=tuple(places))))


@pytest.mark.parametrize("method", ["binary-tree:chains+dense", "binary-tree:ranks+fp16"])
def test_a_binary_tree_sums_like_numpy(method):
    rng, group = np.random.default_rng(0), machine(3, 2).everyone
    gradients = [rng.integers(-9, 9, 50).astype(np.float32) for _ in range(6)]
    want, states = np.sum(gradients, axis=0), fresh_states(gradients, 0, "x")
    run_method(find_method(method), BucketSpec.uniform(50), group, states)
    for state in states:
        np.testing.assert_array_equal(state["result"], want)


def test_golden_tree_of_three_nodes():
    found = dumps(COLLECTIVES["binary-tree:chains"](machine(3, 2).everyone))
    assert (
        found
        == """\
binary-tree:chains goal=all-reduce ranks=6 blocks=1
3>2:0+
5>4:0+
2>4:0+
4>0:0+
1>0:0+
0>1:0
0>4:0
4>2:0
4>5:0
2>3:0
"""
    )


def test_an_unknown_tree_is_refused():
    with pytest.raises(CommschedError, match="shape 'x'; allowed: chains, ranks"):
        COLLECTIVES["binary-tree:x"]


@pytest.mark.by_day(0)
def test_ddp_on_summit_takes_what_a_ring_takes(tmp_path, capsys):
    words = ["bert-base", "--machine", "summit", "--nodes", "4", "--planner", "ddp-25mb"]
    words += ["--time-limit", "0"]  # of the plans that it is compared with
    path = str(tmp_path / "plan.json")
    assert main(["plan", *words, "-o", path, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "ddp-25mb (NCCL): native is ring, Simple" in shown
    assert "native+dense (NCCL ring, LL128)" in shown
    assert main(["plan", *words, "-o", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["library"] == "NCCL"
    assert {x["algorithm"].partition(",")[0] for x in data["launches"]} == {
        "NCCL ring",
        "NCCL tree",
    }
    assert 0.110 < data["iteration_median_seconds"] < 0.120
    assert main(["simulate", path]) == 0
    assert "ddp-25mb (NCCL): native is" in capsys.readouterr().out
    assert main(["show", path]) == 0
    assert "ddp-25mb (NCCL): native is" in capsys.readouterr().out


def test_ddp_at_10_gbit_sends_twice_its_gradients_through_each_port():
    summit, rate = on("summit", 4, 6), 1 / 1.25e9
    slow = replace(
        summit,
        between=replace(summit.between, per_byte=rate),
        nic=replace(summit.nic, per_byte=rate),
    )
    net = net_file.load("bert-base")
    made = make_plan(Request(net=net, machine=slow), "ddp-25mb")
    port = 2 * 23 / 24 * 4 * net.numel * rate
    assert port < made.iteration < 1.1 * port


def test_sent_is_what_the_algorithm_puts_on_the_wire():
    net = net_file.load("resnet50")
    made = make_plan(Request(net=net, machine=on("summit", 4, 6)), "ddp-25mb")
    found = report(simulate(made, 3))
    assert found["sent_median_bytes"] == pytest.approx(2 * 23 / 24 * 4 * net.numel, rel=1e-6)


def test_show_and_price_name_the_library(tmp_path, capsys):
    assert main(["show", "h100-8x400"]) == 0
    assert "\nlibrary NCCL\n" in capsys.readouterr().out
    path = tmp_path / "m.json"
    file.write(path, replace(file.load("summit"), library=""))
    assert main(["show", str(path)]) == 0
    assert "\nlibrary NCCL, as the machine file names none\n" in capsys.readouterr().out
    assert main(["price", "1000", "--machine", str(path), "--method", "native+dense"]) == 0
    assert "native+dense (NCCL tree, LL)" in capsys.readouterr().out
    words = ["--machine", str(path), "--method", "native+dense,ring+dense", "--json"]
    assert main(["price", "1000", *words]) == 0
    found = {x["method"]: x["algorithm"] for x in json.loads(capsys.readouterr().out)["methods"]}
    assert found == {"native+dense": "NCCL tree, LL", "ring+dense": None}
    assert main(["show", "localhost"]) == 0
    assert "\nlibrary MPICH; its all-reduce was measured\n" in capsys.readouterr().out


def test_the_parts_of_a_native_price_are_those_of_one_algorithm():
    where = on("summit", 4, 6)
    made = make_plan(Request(net=net_file.load("resnet50"), machine=where), "ddp-25mb")
    prediction = simulate(made, 1)
    found = makeups(made, [p.op for p in prediction.placed])
    for launch in made.launches:
        makeup = next(m for name, m in found.items() if name.startswith(f"{launch.name}/"))
        nbytes = 4.0 * made.spec(launch).numel
        taken = library.algorithm_of(where, where.everyone, nbytes)
        assert makeup.latency >= taken.base
        assert makeup.bandwidth > 0.0


def test_the_planner_prices_both_sides_of_a_switch():
    request = Request(net=net_file.load("resnet50"), machine=on("summit", 4, 6))
    prices = Problem(request).prices
    number = prices.add(find_method(LIBRARY))
    sizes = prices.curve(number)[0].astype(int)
    names = [algorithm_of(request.machine, prices.group, 4.0 * n).title for n in sizes]
    switches = [(a, b) for (a, x), (b, y) in pairwise(zip(sizes, names, strict=True)) if x != y]
    assert switches
    assert all(b - a == 1 for a, b in switches)


def test_a_method_with_more_phases_for_larger_buckets_is_priced_between_them():
    sizes = 4, 950_000
    net = graph(list(sizes))
    prices = Problem(Request(net=net, machine=machine(4, 2), lossy=("topk:0.01",))).prices
    method = find_method("node-union+topk:0.01")
    number = prices.add(method)
    specs = [BucketSpec.uniform(size) for size in sizes]
    few, more = (len(method.phases(spec, prices.group)) for spec in specs)
    assert few < more
    found = prices.by_size(number, np.array(sizes, np.float64)).sum(axis=(0, 1))
    exactly = [prices.exact(spec, number).sum() for spec in specs]
    assert found == pytest.approx(exactly, rel=2e-3)  # between the ends of a curve


def test_one_rank_has_nothing_to_exchange(capsys):
    words = ["--nodes", "1", "--lanes", "1", "--method", "native+dense", "--json"]
    assert main(["price", "1000", "--machine", "summit", *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)["methods"]
    assert found["algorithm"] == "NCCL of one rank"
    assert (found["seconds"], found["bytes_per_rank"]) == (0.0, 0.0)
    assert main(["price", "1000", "--machine", "summit", *words[:-1]]) == 0


@pytest.mark.parametrize(("points", "short"), [((), 1.05), (((1e3, 1e-4), (1e9, 1.0)), 1.004)])
def test_plans_of_sums_that_end_one_by_one_are_simulated_if_they_are_near(points, short):
    where = replace(on("summit", 2, 2), native=points)
    search = Search(Request(net=net_file.load("resnet50"), machine=where))
    made = search.problem.uniform(search.problem.tensors, True)
    some = replace(made, choices=made.choices[:3])
    assert simulated_up_to(search.problem, some) == pytest.approx(short)
