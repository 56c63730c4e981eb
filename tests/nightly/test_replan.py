"""`run --replan` over a real network: a host becomes slow during the run."""

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from commsched.lab.testbed import network, system
from commsched.lab.testbed.bed import Testbed
from commsched.lab.validate.fabrics import launcher, variables
from commsched.machine.model import Link
from commsched.plan import file as plan_file
from commsched.timeline import file as timeline_file
from commsched.timeline.parts import part_path
from tests.support.small_plans import graph, machine, plan

REASON = system.lacking()
needs_rights = pytest.mark.skipif(REASON is not None, reason=str(REASON))
SECONDS = 200.0  # for the job to end
MBIT = 1e6 / 8  # B/s
# Slow links, and 16 ms for a message: where a busy machine delays each by 1 ms, as seen with faster
# links and shorter messages, exchanges are 1.6 times as long, and planned anew for that.
FAST, SLOW = 40 * MBIT, 10 * MBIT
SIZES = [80_000, 40_000]
# It is found in about 5 steps, and what is still wrong then would be found in 7 more.
STEPS, TURN = 20, 6
HOST = 2


def slow_down(name: str) -> None:
    """Give one host another rate, in both directions."""
    burst = max(network.BURST * SLOW, network.LEAST_BURST)
    shape = f"root tbf rate {SLOW:.0f}bps burst {burst:.0f}b limit {network.QUEUE}b".split()
    for where, device in (
        (network.namespace(name, f"h{HOST}"), network.INTERFACE),
        (network.namespace(name, network.SWITCH), f"h{HOST}"),
    ):
        system.command("tc", "-n", where, "qdisc", "change", "dev", device, *shape)


def last_step(part: Path) -> int:
    """The step of the last whole line that rank 0 has written so far."""
    lines = part.read_bytes().splitlines() if part.exists() else []
    return max((json.loads(line)[2] for line in lines[1:-1]), default=-1)


def slow_down_in_step(name: str, part: Path, over: threading.Event) -> None:
    while not over.is_set():
        if last_step(part) >= TURN:
            slow_down(name)
            return
        time.sleep(0.02)


@needs_rights
def test_a_host_that_becomes_slow_is_found_fitted_and_planned_around(tmp_path):
    name = f"test-replan-{tmp_path.stat().st_ino}"
    link = Link(latency=1e-4, overhead=2e-5, per_byte=1 / FAST, source="test")
    on = replace(machine(4, 1), between=link)
    file, output = tmp_path / "plan.json", tmp_path / "m.json"
    plan_file.write(file, plan(graph(SIZES, 2e-3), on, ["ring+dense"]))
    words = ["run", str(file), "-o", str(output), "--steps", str(STEPS), "--replan", "--verify"]
    over = threading.Event()
    with Testbed.up(4, 1, ["40mbit"], name=name) as bed:
        args = name, part_path(output, 0), over
        watcher = threading.Thread(target=slow_down_in_step, args=args)
        watcher.start()
        try:
            done = bed.run(
                [sys.executable, "-m", "commsched", *words],
                ranks=4,
                launcher=launcher(),
                timeout=SECONDS,
                variables=variables(),
            )
        finally:
            over.set()
            watcher.join()
    assert done.status == 0, done.stderr
    measured = timeline_file.read(output)
    (switch,) = measured.header.switches
    assert switch.step > TURN
    assert f"node {HOST} x" in switch.why
    fitted = float(switch.why.rpartition(" x ")[2])
    # A quarter of the rate; a price errs by up to a quarter, and so may what it is fitted by.
    assert 0.75 * SLOW / FAST < fitted < 1.25 * SLOW / FAST, switch.why
    assert switch.plan != measured.plan_hash
    assert max(measured.step) == STEPS - 1
    assert measured.header.verified.largest_relative_error["ring+dense"] < 1e-6
