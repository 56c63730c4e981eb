"""The search among strategies against an exhaustive one, on trees and nets that can be cut."""

from dataclasses import replace

import pytest

from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.generate.transformer import gpt
from commsched.planner.request import Request
from tests.support.auto_search import check_floors

SHAPES = [("superpod-h100", 2, 2), ("superpod-h100", 4, 2), ("dgx-a100", 1, 4)]


@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize(("name", "nodes", "lanes"), SHAPES)
def test_a_transformer_gets_the_plan_of_an_exhaustive_search(
    name: str, nodes: int, lanes: int, jitter: float
) -> None:
    """The device is slow, so that a small net takes milliseconds."""
    on = resized(machine_file.load(name), nodes, lanes)
    device = replace(on.device, flops=1e11, bandwidth=1e11, matrices=())
    blocks = gpt("small", layers=2, hidden=256, heads=4, sequence=64, vocabulary=256, batch=1)
    machine = replace(on, device=device, jitter=jitter)
    check_floors(Request(net=blocks, machine=machine), unmeasured=nodes < 4, lost=1e9)
