"""Compute that spins has the processor time that it asks for, and nets say whether they spin."""

import time
from dataclasses import replace

import pytest

from commsched.net import file as net_file
from commsched.net.measured import PROCESSOR, Measured
from commsched.run.engine.compute_stream import spin


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_spinning_takes_processor_time_of_this_thread(seconds):
    begun = time.thread_time()
    spin(seconds)
    assert time.thread_time() - begun >= seconds


def test_a_net_measured_on_a_processor_occupies_cores():
    net = net_file.load("lstm")
    assert not net.occupies_cores
    measured = Measured(device=PROCESSOR, source="a test")
    assert replace(net, measured=measured).occupies_cores
