"""The map of winners over density and bandwidth, and its picture."""

import pytest

from commsched.cli.main import main
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method, legal_methods
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net.bucket import BucketSpec
from commsched.planner.crossover import WIDE, Outpaced, at_rate, outpaced, winners
from tests.support.small_plans import machine

DENSITIES, RATES = (0.001, 1.0), (1e7, 1e10)


def test_every_winner_is_the_cheapest_of_all_legal_methods():
    on = machine(2, 2)
    found = winners(10**6, on, list(legal_methods(on.everyone)), densities=DENSITIES, rates=RATES)
    for density, row in zip(DENSITIES, found.names, strict=True):
        for rate, name in zip(RATES, row, strict=True):
            there, spec = at_rate(on, rate), BucketSpec.uniform(10**6, density)
            seconds = {
                m.name: price(m, spec, there, on.everyone, limit=0).seconds
                for m in legal_methods(on.everyone)
            }
            assert seconds[name] == min(seconds.values())


def test_few_non_zeros_travel_as_coordinates_and_many_do_not():
    on = machine(2, 2)
    methods = list(legal_methods(on.everyone, lossless=True))
    found = winners(10**6, on, methods, densities=DENSITIES, rates=(1e7,))
    (few,), (many,) = found.names
    assert find_method(few).compresses
    assert many.endswith("+dense")


def test_a_machine_of_one_node_has_no_map():
    with pytest.raises(CommschedError, match=r"has one node.*nearest: --nodes 2"):
        winners(10, machine(1, 2), [])


@pytest.mark.by_day(0)
def test_the_figure_is_of_the_methods_that_were_asked_for(tmp_path, capsys):
    names = "halving-doubling+dense,halving-doubling+fp16"
    words = ["price", "25000000", "--machine", "p3.16xlarge", "--nodes", "4"]
    assert main([*words, "--method", names, "--figure", str(tmp_path / "m.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:-1]} == set(names.split(","))
    assert main([*words, "--method", names, "--figure", str(tmp_path / "m.svg")]) == 0
    assert f"fastest of {names.replace(',', ', ')}" in (tmp_path / "m.svg").read_text()


def test_every_cell_of_the_map_counts_as_progress():
    on, cells = machine(2, 2), []
    winners(10, on, [find_method("ring+dense")], done=cells.append)
    assert sum(cells) == 17 * 17


def test_the_rate_up_to_which_a_codec_pays_is_that_of_played_exchanges():
    on = resized(machines.load("p3.16xlarge"), 2, 2)
    spec = BucketSpec.uniform(10**6)
    found = outpaced(spec, on, "topk:0.01")
    legal = [*legal_methods(on.everyone, more=("topk:0.01",))]
    kinds = [m for m in legal if m.coding == "topk:0.01"], [m for m in legal if m.lossless]
    pays = []
    for rate in (found.rate / 1.01, found.rate * 1.01):
        there = at_rate(on, rate)
        coded, exact = (
            min(price(m, spec, there, on.everyone).seconds for m in some) for some in kinds
        )
        pays.append(coded < exact)
    assert pays == [True, False]


def test_a_codec_pays_in_the_ranges_that_are_told_and_nowhere_else():
    on, spec = resized(machines.load("p3.16xlarge"), 2, 3), BucketSpec.uniform(1000)
    found = outpaced(spec, on, "fp16")
    assert len(found.pays) == 2
    legal = [*legal_methods(on.everyone, more=("fp16",))]
    kinds = [m for m in legal if m.coding == "fp16"], [m for m in legal if m.lossless]
    for rate in WIDE[::6]:
        there = at_rate(on, rate)
        coded, exact = (
            min(price(m, spec, there, on.everyone).seconds for m in some) for some in kinds
        )
        assert (coded < exact) == any(low <= rate <= high for low, high in found.pays)


def test_a_codec_that_pays_again_at_fast_rates_is_told_so():
    slow, fast = (WIDE[0], 1e8 / 8), (1e11 / 8, WIDE[-1])
    some = Outpaced("fp16", "ring+fp16", "ring+dense", slow[1], True, (slow, fast))
    begin, end = "fp16 pays at rates of a port", "; at others the best lossless method is faster"
    assert some.sentence() == f"{begin} up to 100 Mbit/s and from 100 Gbit/s on{end}"
    late = some._replace(rate=None, faster=False, pays=(fast,))
    assert late.sentence() == f"{begin} from 100 Gbit/s on{end}"
