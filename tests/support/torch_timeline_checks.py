"""What two ranks check of the timelines of a training in the job of tests/support/torch_job.py."""

import io
import os
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from commsched.run.adapt.drift import exchange_seconds
from commsched.run.job import agree
from commsched.simulate.engine import simulate
from commsched.timeline import check as timeline_check
from commsched.timeline import file as timeline_file
from commsched.timeline.compare import compare
from commsched.torch import DataParallel, attach
from commsched.torch.data_parallel import ExchangeTimes
from commsched.torch.watch import Watch
from tests.support.overlaps import overlaps
from tests.support.torch_capture_checks import captured, planned
from tests.support.torch_checks import WORLD, by_mpi, check, same, train, with_sync
from tests.support.torch_nets import batch, loss_of, make, plan_of


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
    assert dict(found.within) == {
        "data": "the forward of 0",
        "optimizer": "the apply of the launches",
    }
    del held


@check
def an_optimizer_of_another_model_moves_no_span():
    """As that of a discriminator: the forward pass begins where "data" ends all the same."""
    path, held = folder()
    model, other = make("mlp"), make("mlp", 1)
    plan = planned(captured("mlp", model))
    mine, its = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    with attach(model, plan, timeline=path / "measured.json"):
        for step in range(3):
            loss = loss_of(model, *batch("mlp", step, WORLD.rank))
            its.step()
            loss.backward()
            mine.step()
    WORLD.Barrier()
    spans = [s for s in timeline_file.read(path / "measured.json") if s.rank == WORLD.rank]
    WORLD.Barrier()
    for step in (1, 2):
        data, first = (
            next(s for s in spans if (s.name, s.step) == (name, step))
            for name in ("data", "forward/0")
        )
        assert abs(first.start - data.end) < 1e-7, (data, first)  # s, as a file rounds it
    del held


@check
def a_prediction_without_overlap_has_the_operations_of_a_training():
    """Means are put back bucket by bucket, then one update follows."""
    path, held = folder()
    model = make("mlp")
    made = planned(captured("mlp", model))
    plan = replace(made, params={**made.params, "overlap": "backward"})
    with attach(model, plan, timeline=path / "measured.json") as sync:
        train("mlp", with_sync(sync), 4, model)
    WORLD.Barrier()
    found = compare(simulate(plan, 4).timeline(), timeline_file.read(path / "measured.json"))
    WORLD.Barrier()
    assert found.only_predicted == found.only_measured == found.within == ()
    predicted = {o.name: o.seconds.predicted for o in found.operations}
    put = sum(seconds for name, seconds in predicted.items() if name.endswith("/apply"))
    assert abs(put - plan.net.apply) < 1e-9
    assert abs(predicted["optimizer"] - plan.net.optimizer) < 1e-9
    assert abs(predicted["data"] - plan.net.data) < 1e-9
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


@check
def a_machine_is_fitted_to_the_exchanges_of_real_steps():
    model = make("mlp")
    plan = plan_of(model, WORLD.size)
    slow = replace(plan.machine.inside, per_byte=8 * plan.machine.inside.per_byte)
    slower = replace(plan.machine, inside=slow)
    with attach(model, plan) as sync:
        exchanges = ExchangeTimes(sync)
        train("mlp", with_sync(sync), 3, model)
    assert [len(each) for each in exchanges.seconds] == [3] * len(plan.launches)
    exchanges.seconds = [[s, s, 1.0] for s in exchange_seconds(plan, slower)]
    fitted = exchanges.fitted(plan.machine, WORLD)
    assert abs(fitted.inside.per_byte / slow.per_byte - 1) < 1e-3, fitted.inside
    exchanges.seconds = [[1.0]] * len(plan.launches)  # no rate explains so much
    assert exchanges.fitted(plan.machine, WORLD) is plan.machine


@check
def layers_are_measured_where_no_output_is_a_tensor():
    """The backward pass begins with its first gradient if no hook sees it begin."""

    class Boxed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make("mlp")

        def forward(self, x):
            return SimpleNamespace(logits=self.inner(x))

    model = Boxed()
    watch = Watch(model)
    for step in range(2):
        inputs, targets = batch("mlp", step, WORLD.rank)
        nn.functional.cross_entropy(model(inputs).logits, targets).backward()
        watch.end_of_step(keeps=True)
    watch.close()
    ready = watch.observer.ready()
    assert (ready >= 0).all()
    assert (ready < 10).all()
    assert watch.batch == 5
    assert (watch.observer.forward_of_layers() > 0).all()


@check
def a_model_is_copied_and_saved_whole_and_the_copies_are_not_attached():
    path, held = folder()
    model = make("mlp")
    with attach(model, planned(captured("mlp", model)), timeline=path / "m.json") as sync:
        train("mlp", with_sync(sync), 1, model)
        saved = io.BytesIO()
        torch.save(model, saved)
        kinds = sorted({type(module) for module in model.modules()}, key=str)
        with torch.serialization.safe_globals([*kinds, set]):
            loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
        x, _ = batch("mlp", 7, 0)
        for each in (loaded, deepcopy(model)):
            assert torch.equal(each(x), model.forward(x))
            if WORLD.rank == 0:  # alone: an attached model would exchange, and wait for ever
                each(x).sum().backward()
        train("mlp", with_sync(sync), 1, model)
    WORLD.Barrier()
    del held


@check
def a_data_parallel_is_copied_averaged_and_saved_and_the_copies_are_not_attached():
    parallel, saved = DataParallel(make("mlp"), steps=4, machine="localhost"), io.BytesIO()
    step = torch.optim.SGD(parallel.parameters(), lr=0.1)
    train("mlp", with_sync(parallel), 1, parallel, optimizer=step)
    averaged = torch.optim.swa_utils.AveragedModel(parallel)
    averaged.update_parameters(parallel)
    torch.save(parallel, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=False)
    x, _ = batch("mlp", 7, 0)
    for each in (loaded, deepcopy(parallel), averaged.module):
        assert list(each.state_dict()) == list(parallel.state_dict())
        assert torch.equal(each(x), parallel.module.forward(x))
        if WORLD.rank == 0:  # alone
            each(x).sum().backward()
    train("mlp", with_sync(parallel), 1, parallel, optimizer=step)
    parallel.close()


@check
def forward_passes_are_measured_in_evaluation_mode_and_left_out_where_only_parts_are_called():
    for whole in (True, False):
        path, held = folder()
        model = make("mlp").eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(model, WORLD.size)
        with attach(model, plan, timeline=path / "measured.json"):
            for step in range(3):
                optimizer.zero_grad()
                x, _ = batch("mlp", step, WORLD.rank)
                seen = model(x) if whole else model[4](model[2](model[0](x)))
                seen.sum().backward()
                optimizer.step()
        WORLD.Barrier()
        t = timeline_file.read(path / "measured.json")
        WORLD.Barrier()
        spans = [s for s in t if s.name.startswith("forward/")]
        assert bool(spans) is whole
        assert all(0.0 <= s.end - s.start < 10.0 for s in t)
        del held
