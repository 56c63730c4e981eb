"""Exchanges that are compiled once and started in every step."""

import os
import sys
import threading

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.exchange.endpoint import ReducingEndpoint
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.run.engine.prepare import driver, prepared
from commsched.run.engine.prepared_exchange import Landing, Prepared
from commsched.run.engine.probe import TURNS, Arena, ProbeExchanges
from commsched.run.engine.transfer import Transfer, begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job.clock import now
from commsched.run.wire.host import PLAIN, PlainPath
from commsched.run.wire.path import Repeated, Unlocked
from tests.support.ranks import WORLD, together

NUMEL, STEPS = 1001, 3
GROUP = Group(ranks=tuple(range(WORLD.size)), nodes=(0,) * WORLD.size)


def gradient(step: int) -> np.ndarray:
    drawn = np.random.default_rng([step, WORLD.rank])
    return drawn.standard_normal(NUMEL, np.float32)


def endpoint(collective: str, codec: str, numel: int = NUMEL):
    schedule = route(collective, GROUP)
    payload = Payload.reducing(schedule, CODECS[codec], BucketSpec.uniform(numel))
    values = np.zeros(numel, np.float32)
    return schedule, values, ReducingEndpoint(values, payload, {}, None)


@pytest.mark.parametrize("codec", ["dense", "fp16"])
@pytest.mark.parametrize(
    "collective", ["ring", "doubling", "halving-doubling", "direct", "tree", "native"]
)
def test_every_start_gives_the_bits_of_an_exchange_that_is_made_anew(collective, codec):
    if (collective, codec) == ("native", "fp16"):
        return  # the library sums float32
    schedule, values, held = endpoint(collective, codec)
    values[:] = gradient(0)
    again = prepared(schedule, held, WORLD, 7, PLAIN) or begin(schedule, held, WORLD, 7)
    assert isinstance(again, Repeated)
    problems = []
    for step in range(STEPS):
        if step:
            values[:] = gradient(step)
            held.again(values, held.payload)
            again.start()
        complete(again)
        found, sent = held.result().copy(), again.sent
        _, other, fresh = endpoint(collective, codec)
        other[:] = gradient(step)
        once = begin(schedule, fresh, WORLD, 7)
        complete(once)
        problems.append("" if np.array_equal(found, fresh.result()) else f"step {step}: bits")
        if isinstance(once, Repeated):
            once.free()
        problems.append("" if sent == once.sent else f"step {step}: {sent} B")
    again.free()
    together(problems)


def test_a_step_of_dense_sums_makes_no_objects():
    schedule, _, held = endpoint("ring", "dense")
    again = prepared(schedule, held, WORLD, 7, PLAIN)
    complete(again)
    blocks = []
    for _ in range(3):
        before = sys.getallocatedblocks()
        for _ in range(100):
            again.start()
            while not again.progress():
                os.sched_yield()  # as many ranks share a core here
        blocks.append(sys.getallocatedblocks() - before)
    again.free()
    together([f"{blocks} blocks" if min(blocks) > 5 else ""])


@pytest.mark.skipif(not issubclass(driver(), Unlocked), reason="needs commsched[fast]")
def test_no_exchange_waits_until_code_is_loaded():
    from commsched.kernels import fast_exchange

    for codec in ("dense", "fp16"):
        schedule, _, held = endpoint("ring", codec)
        again = prepared(schedule, held, WORLD, 7, PLAIN)
        complete(again)
        again.free()
    kinds = len(fast_exchange.drive.nopython_signatures)  # that `driver` loads, and no other
    together(["" if kinds == 1 else f"code for {kinds} kinds of arguments"])


@pytest.mark.skipif(not issubclass(driver(), Unlocked), reason="needs commsched[fast]")
def test_compiled_exchanges_go_on_while_python_holds_the_lock():
    schedule, values, held = endpoint("ring", "dense")
    values[:] = 1 + WORLD.rank
    again = prepared(schedule, held, WORLD, 7, PLAIN)
    begins, usual = threading.Event(), sys.getswitchinterval()
    pace = np.array([20.0, 0.0, 0.0, 1e-3, 1e-3])  # s of patience; sleeps of 1 ms

    def wait():
        begins.set()
        again.wait(pace, 0.0, np.zeros(1, np.uint8))

    waiter = threading.Thread(target=wait)
    sys.setswitchinterval(60.0)  # until its holder waits, nobody else gets the lock
    try:
        waiter.start()
        begins.wait()
        until, total = now() + 10.0, [sum(range(1, WORLD.size + 1))] * NUMEL
        while (summed := values.tolist() == total) is False and now() < until:
            pass
    finally:
        sys.setswitchinterval(usual)
    waiter.join()
    again.free()
    together(["" if summed else "not summed until the lock was free"])


def test_what_was_compiled_for_less_memory_is_compiled_anew():
    landing, held = Landing(), endpoint("ring", "dense")[2]
    schedule, _, large = endpoint("ring", "dense", 4 * NUMEL)
    small = prepared(schedule, held, WORLD, 7, PLAIN, landing)
    complete(small)
    assert small.fits(schedule, held)
    assert not small.fits(schedule, large)
    other = prepared(schedule, large, WORLD, 7, PLAIN, landing)
    complete(other)
    assert small.fits(schedule, held) == (WORLD.size == 1)
    assert other.fits(schedule, large)
    small.free()
    other.free()


def test_packets_in_pieces_and_of_unknown_size_go_another_way():
    schedule, _, held = endpoint("ring", "dense")
    way = schedule, held, WORLD, 7
    known = prepared(*way, PlainPath(64))
    assert (known is None) == (WORLD.size > 1)
    schedule, _, held = endpoint("ring", "coo")
    assert prepared(schedule, held, WORLD, 7, PLAIN) is None


@pytest.mark.parametrize(("codec", "kind"), [("dense", Prepared), ("elias", Transfer)])
def test_calibration_times_what_a_run_does(codec, kind):
    exchanges, problems = ProbeExchanges(WORLD, Arena(16 * NUMEL)), []
    with exchanges.beginner("doubling", CODECS[codec], NUMEL) as start:
        for turn in range(2 * TURNS):
            exchanges.arena.values[:] = 1 + WORLD.rank + turn
            started = start()
            problems += [] if isinstance(started, kind) else [f"{type(started)} in turn {turn}"]
            complete(started)
            total = sum(range(1, WORLD.size + 1)) + turn * WORLD.size
            summed = np.count_nonzero(exchanges.arena.values == total)
            if WORLD.size > 1 and summed != NUMEL:
                problems.append(f"turn {turn}: {summed} of {NUMEL} elements are summed")
    together(problems)
