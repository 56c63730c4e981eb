"""Calibration gives a machine that planning and pricing can use, and that its file keeps."""

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from commsched.calibrate import coding, session
from commsched.calibrate.coding import shortens
from commsched.calibrate.machine_cache import kept_machine
from commsched.calibrate.main import calibrate
from commsched.coding.registry import CODECS
from commsched.cost.price import method_seconds
from commsched.exchange.registry import legal_methods
from commsched.machine import file as machine_file
from commsched.machine.trust import MEMORY_CHANGE
from commsched.net.bucket import BucketSpec
from commsched.run.engine.probe import median_cpu_seconds, median_seconds
from commsched.run.job import agree
from tests.support.ranks import WORLD, together
from tests.support.small_plans import machine

pytestmark = pytest.mark.groups(3)


@pytest.mark.groups  # by night: all codecs are measured, on all ranks of the job
def test_the_calibrated_machine_can_be_planned_with_and_written(monkeypatch):
    monkeypatch.setattr(coding, "LARGE", 4 * coding.SMALL)  # any two sizes give a line
    shares: list[float] = []
    machine = calibrate(WORLD, 0.5, 60.0, lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert machine.size == WORLD.size
    assert bool(machine.held_out) == (WORLD.size > 1)
    assert machine.fabric is not None
    counts, rates = np.array(machine.shared_memory).T
    assert counts.tolist() == sorted({n for n in (1, 2, 4, 8) if n < WORLD.size} | {WORLD.size})
    assert (rates > 0).all()
    assert (np.diff(rates) <= 0).all()
    assert machine.measured[MEMORY_CHANGE] > 0.0
    assert machine.library == ("openmpi" if "Open MPI" in machine.fabric.mpi else "mpich")
    assert set(machine.device.codecs) == {codec.name for codec in coding.measured()}
    data = machine_file.to_data(machine)
    again = machine_file.from_data(data, "calibrated")
    assert machine_file.to_data(again) == data
    group = machine.everyone
    for method in islice(legal_methods(group), WORLD.rank, None, WORLD.size):
        times = [
            method_seconds(method, BucketSpec.uniform(numel), machine, group)
            for numel in (1, 10**4, 10**6)
        ]
        assert all(np.isfinite(times))
        assert times == sorted(times)
    for number in (machine.inside.latency, machine.inside.per_byte, machine.startup):
        assert len(set(agree.gather_numbers(number, WORLD))) == 1


def test_what_selects_is_timed_on_values_without_zeros():
    """Zeros are all equal: a selection by rank takes ten times as long among them."""
    assert all(shortens(CODECS[name], 8192) for name in ("topk:0.01", "randomk:0.01", "dgc:0.001"))
    sparse = ("coo", "bitmap", "block", "elias", "threshold:0.001")
    assert not any(shortens(CODECS[name], 8192) for name in sparse)


def test_work_that_sleeps_lasts_but_takes_no_processor():
    def work() -> None:
        time.sleep(0.02)

    assert median_cpu_seconds(WORLD, 0.0, work) < 0.01 < 0.02 <= median_seconds(WORLD, 0.0, work)


def test_the_machine_of_the_last_time_is_kept_for_the_same_ranks(shared, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    measured = []

    def measure():
        measured.append(replace(machine(1, WORLD.size), name=f"of time {len(measured)}"))
        return measured[-1]

    problems = []
    for want in ("of time 0", "of time 0"):
        found = kept_machine(WORLD, measure)
        if found.name != want or found.size != WORLD.size:
            problems.append(f"{found.name} of {found.size} ranks, not {want}")
    WORLD.Barrier()
    if WORLD.rank == 0:
        (path,) = (shared / "commsched" / "machines").iterdir()
        path.write_text("{")  # torn
    if kept_machine(WORLD, measure).name != "of time 1" or len(measured) != 2:
        problems.append(f"measured {len(measured)} times")
    monkeypatch.setattr("commsched.__version__", "0.0.0")
    kept_machine(WORLD, measure)
    if len(measured) != 3:
        problems.append("another version's machine was taken")
    together(problems)


def test_what_is_told_during_a_calibration_is_in_its_json_too():
    sentence = "2 s are too few here"
    found = session._data(machine(2, 1), Path("m.json"), [sentence])
    assert found["warnings"] == [sentence]
    assert f"warning: {sentence}" in session._report(machine(2, 1), Path("m.json"), [sentence])
