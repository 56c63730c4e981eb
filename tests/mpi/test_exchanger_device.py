"""The Exchanger with gradients on a device: the bits of NumPy, in arrays of the device."""

import numpy as np
import pytest

from commsched.kernels.hashing import index_sets
from commsched.kernels.modules import on_host
from commsched.run import exchanger
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.timeline import file as timeline_file
from tests.mpi.test_place import pointed, staged
from tests.support.overlaps import overlaps
from tests.support.ranks import WORLD, together
from tests.support.tiny_exchange import BACKWARD, SHAPES, gradients, make_plan, refused, total

pytestmark = pytest.mark.groups(3)
METHODS = ["ring+dense", "native+dense", "all-gather+coo", "zen", "node-union"]


@pytest.fixture(params=[staged, pointed])
def where(request, monkeypatch):
    """A device in place of the GPU that is current."""
    found = request.param()
    monkeypatch.setattr(exchanger, "choose_placement", lambda name, comm, current: found)
    return found


def summed(plan, module, steps, **options):
    """All sums of some steps, in NumPy."""
    found = []
    with Exchanger(plan, WORLD, device="cuda", **options) as summing:
        for step in range(steps):
            mine = gradients(step, WORLD.rank)
            for name in BACKWARD:
                given = module.asarray(mine[name])
                summing.ready(name, given)
                given.fill(99)  # it was copied
            sums = {name: summing.wait(name) for name in summing.names}
            assert all(isinstance(each, module.ndarray) for each in sums.values())
            found.append({name: on_host(each).copy() for name, each in sums.items()})
    return found


def not_sums(found):
    """Where sums of some steps are not NumPy's, a sentence each."""
    return [
        f"step {step}, {name}: not the sum"
        for step, sums in enumerate(found)
        for name, values in total(step, WORLD.size).items()
        if sums[name].shape != SHAPES[name] or not np.array_equal(sums[name], values)
    ]


@pytest.mark.by_day(5)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_a_device_are_summed_to_the_bits_of_numpy(where, method):
    found = summed(make_plan(methods=(method,), mean=False), where.device.module, 3)
    left = index_sets.cache_info().currsize
    together([*not_sums(found), f"{left} index sets are held" if left else ""])


@pytest.mark.by_day(1)
def test_its_timeline_has_every_span_once_and_says_how_buffers_go(where, folder):
    path = folder / "m.json"
    summed(
        make_plan(methods=METHODS), where.device.module, 2, timeline=path, record=folder / "r.json"
    )
    problems = []
    if WORLD.rank == 0:
        timeline = timeline_file.read(path)
        names = [timeline.names[i] for i in timeline.name]
        wanted = 2 * WORLD.size
        problems += [n for n in ("backward/first", "b1/decode") if names.count(n) != wanted]
        problems += overlaps(timeline)
        problems += [] if timeline.header.buffers == "late" else ["no way"]
        problems += [] if (folder / "r.json").exists() else ["nothing recorded"]
    together(problems)


def test_an_array_of_another_module_is_refused(monkeypatch):
    monkeypatch.setattr(exchanger, "choose_placement", lambda name, comm, current: staged())
    with Exchanger(make_plan(), WORLD, device="cuda") as summing:
        given = np.zeros(SHAPES["b"], np.float32)
        refused(lambda: summing.ready("b", given), "a gradient is a CuPy array, got numpy.ndarray")
    refused(
        lambda: Exchanger(make_plan(), WORLD, device="gpu"), "--device must be one of cpu, cuda"
    )
    agree.gather_numbers(0.0, WORLD)
