"""The threads of an engine run in short slices, so that those that compute do not delay them."""

import platform
import sys
import threading

import pytest
from mpi4py import MPI

from commsched.run.engine import short_slice
from commsched.run.engine.engine import Engine
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Emulated
from tests.support.small_plans import graph, machine, plan

GRANTS = sys.platform == "linux" and platform.machine() in short_slice.CALLS
GRANTS = GRANTS and tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)


def test_only_the_thread_that_asks_gets_short_slices():
    found = []
    usual = short_slice.granted()
    thread = threading.Thread(
        target=lambda: found.extend([short_slice.ask(), short_slice.granted()])
    )
    thread.start()
    thread.join()
    assert found[0] is GRANTS
    assert not GRANTS or found[1] == short_slice.SLICE < usual
    assert short_slice.granted() == usual


@pytest.mark.parametrize("machine_name", ["riscv64", ""])
def test_other_systems_have_none(monkeypatch, machine_name):
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    assert short_slice.granted() is None
    assert short_slice.ask() is False


@pytest.mark.skipif(not GRANTS, reason="Linux 6.12 or later has short slices")
def test_every_thread_of_an_engine_asks(monkeypatch):
    asked = []

    def ask() -> bool:
        asked.append(threading.current_thread().name)
        return True

    monkeypatch.setattr(short_slice, "ask", ask)
    made = plan(graph([100]), machine(1, 1), ["ring+dense"])
    worker = Emulated(made, 0)
    engine = Engine(made, MPI.COMM_SELF, worker.roles, Recorder(0), 10.0)
    engine.start()
    engine.stop()
    assert sorted(asked) == ["communication", "decode", "encode"]
