"""Benchmark of the speed and memory of pricing and simulation."""

import resource
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commsched.coding.registry import CODECS
from commsched.cost.play import play
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.lab.bench.row import BenchRow
from commsched.machine import file as machine_file
from commsched.machine.model import Machine, Nic, resized
from commsched.net import file as net_file
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.simulate.engine import simulate
from commsched.simulate.result import Prediction

NUMEL = 25_000_000  # 100 MB of float32
RINGS = 32
NETS = ("vgg16", "resnet50", "resnet101", "gpt2", "lstm", "bert-base")


def rows() -> Iterator[BenchRow]:
    """Run all benchmarks; short ones three times, and the fastest counts."""
    machine = resized(machine_file.load("p3dn.24xlarge"), 128, 8)
    alone = replace(machine, nic=None, jitter=0.02)
    yield _rings("32 rings of 100 MB, 1024 ranks, jitter", alone, "< 1 s, >= 1e8 moves/s, < 500 MB")
    shared = replace(alone, nic=Nic(per_node=1, per_byte=machine.between.per_byte, source="bench"))
    crossing = replace(shared, node_of_rank=tuple(np.arange(1024) % 128))
    yield _rings("the same, 8 lanes share each NIC", crossing, "< 3 s")
    yield _one_ring(32768)
    yield _gpt3()
    yield _grid(16_384, "< 5 s")
    yield _grid(131_072, "< 60 s, < 8 GB")
    for net in NETS:
        yield _net(net)


def _rings(what: str, machine: Machine, bar: str) -> BenchRow:
    """Price consecutive rings; a rank starts each ring when it has ended the previous one."""
    seconds, moves = _played(machine, RINGS)
    memory = f"{peak() / 1e6:.0f} MB peak memory of the process"
    return BenchRow(what, seconds, f"{moves / seconds:.3g} moves/s, {memory}", bar)


def _one_ring(ranks: int) -> BenchRow:
    machine = replace(resized(machine_file.load("p3dn.24xlarge"), ranks // 8, 8), nic=None)
    seconds, moves = _played(machine, 1)
    rate = f"{moves / seconds:.3g} moves/s"
    return BenchRow(f"one ring on {ranks} ranks", seconds, rate, "< 10 s")


def _played(machine: Machine, rings: int) -> tuple[float, int]:
    """Price consecutive rings; return the seconds spent and the number of moves."""
    group = machine.everyone
    schedule = route("ring", group)
    payload = Payload.reducing(schedule, CODECS["dense"], BucketSpec.uniform(NUMEL))
    start, moves = np.random.default_rng(0).exponential(1e-3, group.size), 0
    begin = time.perf_counter()
    for _ in range(rings):
        played = play(schedule, payload, machine, group, start)
        start = played.end
        moves += int(played.messages.sum())
    return time.perf_counter() - begin, moves


def _simulated(plan: Plan, times: int = 1) -> tuple[float, Prediction]:
    """Simulate a step `times` times; return the least seconds of a run, and the last result."""
    least = np.inf
    for _ in range(times):
        begin = time.perf_counter()
        found = simulate(plan, 1)
        least = min(least, time.perf_counter() - begin)
    return least, found


def _plan(net: str, machine: Machine, method: str) -> Plan:
    request = Request(net=net_file.load(net), machine=machine)
    return launches(request, buckets(request, 25e6, 1e6), lambda e: replace(e, method=method))


def _gpt3() -> BenchRow:
    machine = replace(resized(machine_file.load("h100-8x400"), 128, 8), jitter=0.05)
    plan = _plan("gpt3-175b", machine, "hierarchical+dense")
    seconds, prediction = _simulated(plan)
    fits = "fits" if prediction.memory.total <= machine.device.memory else "does not fit the memory"
    rate = f"iteration {prediction.end:.3g} s, {len(plan.launches)} launches; {fits}"
    return BenchRow("one iteration of gpt3-175b, 1024 ranks, jitter", seconds, rate, "< 1 s")


def grid_plan(ranks: int) -> Plan:
    """Return a plan of gpt3-175b on nodes of 8 H100: tensor 8 x pipeline 8 x data, jitter."""
    machine = replace(resized(machine_file.load("h100-8x400"), ranks // 8, 8), jitter=0.05)
    params = {"tensor": 8, "pipeline": 8, "zero": 1}
    net = net_file.load("gpt3-175b")
    return make_plan(Request(net=net, machine=machine, strategy="3d", params=params))


def _grid(ranks: int, bar: str) -> BenchRow:
    seconds, found = _simulated(grid_plan(ranks))
    result = f"{len(found.placed)} operations; {peak() / 1e6:.0f} MB peak memory of the process"
    return BenchRow(f"one step of gpt3-175b, 3d, {ranks} ranks, jitter", seconds, result, bar)


def _net(net: str) -> BenchRow:
    machine = replace(resized(machine_file.load("p3dn.24xlarge"), 8, 8), jitter=0.05)
    plan = _plan(net, machine, "ring+dense")
    launched = f"{len(plan.launches)} launches"
    return BenchRow(
        f"one iteration of {net}, 64 ranks", _simulated(plan, 3)[0], launched, "< 50 ms"
    )


def peak() -> float:
    """Return the peak memory of this process, B."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
