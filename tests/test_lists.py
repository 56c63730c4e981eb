"""Tensors whose gradients are handed over as lists of rows: what they cost, and what a run does."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange import rows
from commsched.exchange.registry import find_method
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net import file as net_file
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Launch, Plan
from commsched.program.parts import values_of
from commsched.run.engine.worker import Emulated, draw_launch

LISTS = ("all-gather+coo", "doubling+elias", "balanced", "centralised", "node-union", "sparse-ps")
DENSE = ("ring+dense", "dsar", "omnireduce")
HIT = 100.0  # expected rows


def table(count: int, lists: bool = True) -> Tensor:
    """A table of `count` rows; about HIT of them are hit."""
    law = Sparsity(law="zipf", density=HIT / count, exponent=0.0, rows=count)
    return Tensor(name="table", shape=(count, 8), sparsity=law, lists=lists)


def plan(tensor: Tensor, method: str, ranks: int = 4, start: int = 0) -> Plan:
    layer = Layer(name="one", forward=1e-3, backward=1e-3, tensors=(tensor,))
    cuts = [0, start, tensor.numel] if start else [0, tensor.numel]
    launches = tuple(
        Launch(
            name=f"b{at}",
            pieces=(Piece("table", at, to),),
            after="one",
            method=method,
            stream="inside",
            priority=at,
        )
        for at, to in pairwise(cuts)
    )
    net = Net(name="tables", layers=(layer,), source="made for a test")
    machine = resized(machine_file.load("localhost"), 1, ranks)
    return Plan(net=net, machine=machine, launches=launches, planner="test")


@pytest.mark.parametrize("method", LISTS)
def test_coding_a_list_costs_what_its_rows_cost_not_what_the_table_would(method: str) -> None:
    found = {}
    for count in (10_000, 1_000_000):
        for lists in (True, False):
            made = plan(table(count, lists), method)
            launch = made.launches[0]
            group = made.group(launch)
            whole = price(find_method(method), made.spec(launch), made.machine, group)
            found[count, lists] = whole.encode + whole.decode + values_of(made, 0) * 1e-9
    assert found[1_000_000, True] < 1.5 * found[10_000, True]
    assert found[1_000_000, False] > 20 * found[1_000_000, True]


@pytest.mark.parametrize("method", DENSE)
def test_a_method_without_lists_costs_as_for_a_dense_array(method: str) -> None:
    as_lists, dense = (plan(table(10_000, lists), method) for lists in (True, False))
    prices = [
        price(find_method(method), p.spec(p.launches[0]), p.machine, p.group(p.launches[0]))
        for p in (as_lists, dense)
    ]
    assert prices[0] == prices[1]
    assert values_of(as_lists, 0) == values_of(dense, 0) == 80_000


def test_a_bucket_is_a_list_only_if_all_its_tensors_are() -> None:
    dense = replace(table(1000, lists=False), name="dense")
    tensors = {"table": table(1000), "dense": dense}
    pieces = Piece("table", 0, 8000), Piece("dense", 0, 8000)
    assert BucketSpec.of(pieces[:1], tensors).lists
    assert not BucketSpec.of(pieces, tensors).lists


@pytest.mark.parametrize("start", [0, 16, 4003])  # the second piece may begin within a row
def test_an_emulated_rank_hands_over_the_rows_of_the_gradient_that_it_draws(start: int) -> None:
    made = plan(table(1000), "all-gather+coo", start=start)
    worker = Emulated(made, 1)
    assert worker.rows(0) == {}
    worker.hand_over_lists()
    handed_over = 0
    for index, launch in enumerate(made.launches):
        wanted = draw_launch(made, 1, launch)
        handed = worker.rows(index)
        got = np.full_like(wanted, np.nan)
        rows.write(handed, got)
        assert got.tobytes() == wanted.tobytes()
        handed_over += sum(len(part.rows.number) for part in handed.values())
    assert 0 < handed_over < 500


def test_a_net_file_says_which_gradients_are_lists(tmp_path) -> None:
    net = plan(table(1000), "ring+dense").net
    net_file.write(tmp_path / "net.json", net)
    assert net_file.read(tmp_path / "net.json") == net
    assert '"lists": true' in (tmp_path / "net.json").read_text()


def test_lists_without_a_law_of_rows_are_refused() -> None:
    with pytest.raises(CommschedError, match="lists of rows have law 'zipf', got 'dense'"):
        Tensor(name="table", shape=(10, 4), lists=True)
