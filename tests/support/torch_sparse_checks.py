"""What two ranks check of sparse gradients of embeddings under commsched.torch.attach."""

from itertools import product

import torch

from commsched.torch import attach
from tests.support.torch_checks import METHODS, WORLD, averaged, check
from tests.support.torch_nets import Tables, batch, loss_of, plan_of


def alike(got, want):
    """Whether the bits are equal; a GPU adds gradients of a row that is hit twice in any order."""
    return torch.allclose(got, want) if got.is_cuda else torch.equal(got, want)


@check
def sparse_gradients_of_embeddings():
    """The bits of dense gradients, back as sparse ones; rows are hit twice, or on one rank only."""
    every = (("zen",), ("node-union", "all-gather+coo"), METHODS)
    for methods, bucket in product(every, (1000.0, 2500.0)):  # tables alone; beside dense tensors
        model, want = Tables(sparse=True), Tables()
        plan = plan_of(model, WORLD.size, methods, bucket)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, plan, find_unused_parameters=True):
            want.load_state_dict(model.state_dict())
            for step in range(3):
                optimizer.zero_grad()
                want.zero_grad()
                words, targets = batch("lstm", step, WORLD.rank)
                if (step, WORLD.rank) in ((1, 0), (1, 1), (2, 1)):  # none, or not on rank 1
                    words, targets = words[:, :3], targets[:, :3]
                else:
                    words, targets = (
                        torch.cat([each, each[:, :1]], 1) for each in (words, targets)
                    )
                loss_of(model, words, targets).backward()
                loss_of(want, words, targets).backward()
                if step == 2 and WORLD.rank == 1:
                    want.tails.weight.grad = torch.zeros_like(want.tails.weight)
                averaged(want)
                assert model.words.weight.grad.is_sparse
                assert (model.tails.weight.grad is None) == (step == 1)
                for (name, mine), other in zip(
                    model.named_parameters(), want.parameters(), strict=True
                ):
                    if mine.grad is not None:
                        assert alike(mine.grad.to_dense(), other.grad), (name, step)
                optimizer.step()
                want.load_state_dict(model.state_dict())


@check
def sparse_gradients_overflow_on_all_ranks():
    model = Tables(sparse=True)
    with attach(model, plan_of(model, WORLD.size, ("zen",)), skip_overflow=True):
        words, targets = batch("lstm", 0, WORLD.rank)
        words, targets = (torch.cat([each, each[:, :1]], 1) for each in (words, targets))
        scale = float("inf") if WORLD.rank else 1.0
        (loss_of(model, words, targets) * scale).backward()
        for parameter in model.parameters():
            assert parameter.grad.to_dense().isinf().any()


@check
def a_table_that_is_a_dense_head_too_has_dense_gradients_on_all_ranks():
    """Also on a rank that uses neither."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"words": torch.nn.Embedding(9, 4, sparse=True)})
    model["head"] = torch.nn.Linear(4, 9, bias=False)
    model["head"].weight = model["words"].weight
    model["last"] = torch.nn.Linear(4, 1)
    with attach(model, plan_of(model, WORLD.size), find_unused_parameters=True):
        seen = model["last"](torch.ones(1, 4)).sum()
        if WORLD.rank == 0:
            seen = seen + model["head"](torch.ones(1, 4)).sum()
        seen.backward()
        assert model["words"].weight.grad.layout is torch.strided
        assert torch.equal(model["words"].weight.grad, torch.full((9, 4), 1 / WORLD.size))
