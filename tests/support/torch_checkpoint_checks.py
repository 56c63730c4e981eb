"""What two ranks check of commsched.torch.Checkpoints in the job of tests/support/torch_job.py."""

import tempfile
from pathlib import Path

import torch
from torch import nn

from commsched.torch import Checkpoints, attach
from tests.support.torch_checks import WORLD, check, said, same, train, with_sync
from tests.support.torch_nets import make, plan_of

METHODS = ("all-gather+topk", "ring+dense", "all-gather+randomk")


def shared_folder():
    """A folder of rank 0 that all ranks see; it goes with the object that comes first."""
    here = tempfile.TemporaryDirectory() if WORLD.rank == 0 else None
    return here, Path(WORLD.bcast(here.name if here else ""))


def made(folder, sync, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, Checkpoints(model, optimizer, sync, folder=folder)


@check
def a_script_goes_on_from_its_checkpoint_to_the_same_bits():
    """With momentum, feedback, random choices and torch's random numbers."""
    here, folder = shared_folder()
    model = make("gpt")
    with attach(model, plan_of(model, WORLD.size, METHODS)) as sync:
        optimizer, checkpoints = made(folder, sync, model)
        assert checkpoints.resume() == 0
        train("gpt", with_sync(sync), 2, model, optimizer=optimizer)
        checkpoints.save(1)
        checkpoints.save(2)
        drawn = torch.rand(3)
        want = train("gpt", with_sync(sync), 2, model, first=2, optimizer=optimizer)
    model = make("gpt")
    with attach(model, plan_of(model, WORLD.size, METHODS)) as sync:
        optimizer, checkpoints = made(folder, sync, model)
        assert checkpoints.resume() == 2
        assert torch.equal(torch.rand(3), drawn)
        same(train("gpt", with_sync(sync), 2, model, first=2, optimizer=optimizer), want)
    names = sorted(path.name for path in folder.iterdir())
    WORLD.Barrier()
    assert names == ["manifest.json", "step1", "step2"]
    del here


@check
def a_checkpoint_that_does_not_fit_is_one_sentence():
    here, folder = shared_folder()
    model = nn.Linear(2, 2)
    checkpoints = Checkpoints(model, folder=folder)
    checkpoints.save(3)
    assert "the checkpoint was made with parts 1, now it is 2" in said(
        Checkpoints(model, model, folder=folder).resume
    )
    file = folder / "step3" / "rank1.pt"
    if WORLD.rank == 0:
        file.write_bytes(file.read_bytes()[:-1])
    WORLD.Barrier()
    text = said(checkpoints.resume)
    assert text.startswith(f"rank 1: {file}: the file was changed: its digest differs"), text
    want = model.weight.detach().clone()
    checkpoints.save(4)
    checkpoints.save(5)
    if WORLD.rank == 0:
        (folder / "step5" / "rank1.pt").write_bytes(b"torn")
    WORLD.Barrier()
    with torch.no_grad():
        model.weight.zero_()
    assert checkpoints.resume() == 4
    assert torch.equal(model.weight, want)
    WORLD.Barrier()
    alone = Checkpoints(model, folder=folder, comm=WORLD.Split(WORLD.rank))
    assert "is of 2 ranks, but 1 were started" in said(alone.resume)
    assert "need folder=DIR" in said(lambda: Checkpoints(model))
    WORLD.Barrier()
    del here


@check
def a_state_that_only_code_could_restore_is_refused_when_it_is_saved():
    class Odd:
        def state_dict(self):
            return {"path": Path("x")}

    here, folder = shared_folder()
    text = said(lambda: Checkpoints(Odd(), folder=folder).save(1))
    assert text.startswith("a state to save holds more than tensors and plain values"), text
    assert not list(folder.iterdir())
    WORLD.Barrier()
    del here
