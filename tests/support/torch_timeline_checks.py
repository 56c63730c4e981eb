"""What two ranks check of the timelines of a training in the job of tests/support/torch_job.py."""

import os
import tempfile
from pathlib import Path

from commsched.run.job import agree
from commsched.simulate.engine import simulate
from commsched.timeline import check as timeline_check
from commsched.timeline import file as timeline_file
from commsched.timeline.compare import compare
from commsched.timeline.measure import overlaps
from commsched.torch import DataParallel, attach
from tests.support.torch_capture_checks import captured, planned
from tests.support.torch_checks import WORLD, by_mpi, check, same, train, with_sync
from tests.support.torch_nets import make


def folder():
    """One folder of all ranks; the first one removes it at the end of the job."""
    held = tempfile.TemporaryDirectory() if WORLD.rank == 0 else None
    return Path(agree.gather_text(held.name if held else "", WORLD)[0]), held


@check
def a_timeline_has_the_passes_of_the_layers_data_and_optimizer():
    path, held = folder()
    model = make("mlp")
    plan = planned(captured("mlp", model))
    with attach(model, plan, timeline=path / "measured.json") as sync:
        got = train("mlp", with_sync(sync), 4, model, micro=2)
    same(got, train("mlp", by_mpi, 4, micro=2))
    WORLD.Barrier()
    t = timeline_file.read(path / "measured.json")
    WORLD.Barrier()
    assert timeline_check.problem(t) is None
    assert overlaps(t, tolerance=1e-6) == []
    layers = [layer.name for layer in plan.net.layers]
    want = {f"{way}/{layer}" for layer in layers for way in ("forward", "backward")}
    for step in range(4):
        spans = [s for s in t if (s.rank, s.step, s.stream) == (WORLD.rank, step, "compute")]
        outside = {"optimizer"} | ({"data"} if step else set())
        names = {s.name for s in spans}
        assert want | outside <= names, (step, names)
        starts = {s.name: s.start for s in spans}
        order = [f"forward/{one}" for one in layers] + [f"backward/{one}" for one in layers[::-1]]
        order = (["data"] if step else []) + order + ["optimizer"]
        assert sorted(order, key=starts.__getitem__) == order, starts
    found = compare(simulate(plan, 4).timeline(), t)
    assert found.only_predicted == ()
    assert set(found.only_measured) == {"data", "optimizer"}
    del held


@check
def data_parallel_leaves_a_timeline_of_the_plan_that_it_keeps():
    path, held = folder()
    os.environ["COMMSCHED_TIMELINE"] = str(path / "parallel.json")
    try:
        model = make("mlp")
        parallel = DataParallel(model, steps=4, machine="localhost")
        train("mlp", lambda _, loss, last: loss.backward(), 19 + 5, parallel)
        parallel.close()
    finally:
        del os.environ["COMMSCHED_TIMELINE"]
    WORLD.Barrier()
    t = timeline_file.read(path / "parallel.json")
    WORLD.Barrier()
    assert t.plan_hash == parallel.plan.hash
    assert t.header.steps >= 5
    assert {"data", "optimizer", "forward/4"} <= set(t.names)
    del held
