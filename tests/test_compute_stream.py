"""Compute that spins has the processor time that it asks for, and nets say whether they spin."""

import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from commsched.net import file as net_file
from commsched.net.measured import PROCESSOR, Measured
from commsched.run.engine.compute_stream import Core

LATER = 1e-3  # s between the beginning of a test and of its core


def learned_core() -> Core:
    """Return a core that has learned what interrupts ordinarily take."""
    core = Core()
    core.spin(0.0)
    return core


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_spinning_takes_processor_time_of_this_thread(seconds):
    core = learned_core()
    begun = time.thread_time()
    core.spin(seconds)
    taken = time.thread_time() - begun
    assert taken == pytest.approx(seconds + core.interrupted, abs=LATER)


def test_what_is_done_between_layers_is_no_part_of_their_time():
    core = learned_core()
    begun = time.thread_time()
    core.spin(0.01)
    while time.thread_time() - begun < 0.02:  # a record that takes long
        pass
    core.spin(0.03)
    taken = time.thread_time() - begun
    assert taken == pytest.approx(0.04 + core.interrupted, abs=LATER)
    core.begin()
    core.spin(0.01)
    taken = time.thread_time() - begun
    assert taken == pytest.approx(0.05 + core.interrupted, abs=2 * LATER)


def interrupted_spin(each: float) -> tuple[float, float]:
    """Spin while a signal interrupts every 1 ms; return what they took, and what the core noticed.

    each [s]: what a signal's handler takes, besides what the system takes to call it.
    """
    core, taken = learned_core(), 0.0

    def interrupt(*_: object) -> None:
        nonlocal taken
        begun = time.thread_time()
        while time.thread_time() - begun < each:
            pass
        taken += time.thread_time() - begun

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        core.begin()
        begun = time.thread_time()
        core.spin(0.1)
        lasted = time.thread_time() - begun
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert taken > 5e-3 or not each
    assert lasted == pytest.approx(0.1 + core.interrupted, abs=1e-3)
    return taken, core.interrupted


def test_what_interrupts_take_of_a_core_is_no_work():
    # A host that slows a core for a while interrupts it, too, and a signal's call takes up to
    # 70 us of a virtual machine: medians, and spins under signals whose handler does nothing.
    both = [(*interrupted_spin(2e-4), *interrupted_spin(0.0)) for _ in range(7)]
    taken, noticed, _, quiet = np.median(both, axis=0)
    assert noticed - quiet == pytest.approx(taken, rel=0.3, abs=2e-3)


def test_a_net_measured_on_a_processor_occupies_cores():
    net = net_file.load("lstm")
    assert not net.occupies_cores
    measured = Measured(device=PROCESSOR, source="a test")
    assert replace(net, measured=measured).occupies_cores
