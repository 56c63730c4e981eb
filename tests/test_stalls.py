"""Stalls of compute: their law is what is drawn, what is fitted, and what DASO gains from."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.stalls import NODE, RANK, Stalls, fitted
from commsched.net.graph import Layer, Net
from commsched.plan.model import Plan
from commsched.program.slowness import slowness
from commsched.run.engine.worker import Emulated
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from tests.test_machine import machine

LAW = Stalls(among=RANK, steps=5, points=((0.1, 0.5), (0.001, 5.0)))  # x doubles per factor of 4
SHARED = Stalls(among=NODE, steps=3, points=((0.2, 1.0), (0.02, 3.0)))
SHORT = Stalls(among=RANK, every=2e-3, steps=4, points=((0.1, 0.5), (0.001, 5.0)))
STEPS = 1500


def drawn(*laws: Stalls) -> np.ndarray:
    on = replace(machine(4, 4), stalls=laws, jitter=0.01)
    return np.array([slowness(on, 7, step, np.arange(on.size), 0.0) for step in range(STEPS)])


def test_stalls_are_as_frequent_as_long_and_as_slow_as_their_law():
    on = replace(machine(4, 4), stalls=(LAW,))
    extra = np.array([slowness(on, 7, s, np.arange(16), 0.0) for s in range(STEPS)]) - 1
    for share, longer in ((0.1, 0.5), (0.025, 1.0), (0.001, 5.0 - 1e-9)):
        # spells of 5 steps are independent
        assert (extra >= longer).mean() == pytest.approx(
            share, abs=4 * (share / (16 * STEPS / 5)) ** 0.5
        )
    begins = (np.diff(extra, axis=0) != 0) & (extra[1:] > 0)
    assert (extra > 0).sum() / begins.sum() == pytest.approx(5, rel=0.12)  # some meet


def drawn_short(seconds: float) -> np.ndarray:
    on, steps = replace(machine(4, 4), stalls=(SHORT,)), int(STEPS * 2e-3 / seconds)
    return np.array([slowness(on, 7, s, np.arange(16), seconds) for s in range(steps)])


def test_short_stalls_last_as_long_in_long_steps_as_in_short_ones():
    short, long = drawn_short(2e-3 / 4), drawn_short(2e-3 * 20)
    whole = 16 * STEPS * 2e-3  # s of compute
    assert short.sum() * 2e-3 / 4 == pytest.approx(long.sum() * 2e-3 * 20, rel=1e-3)
    assert long.sum() * 2e-3 * 20 == pytest.approx(whole, rel=0.03)  # which layers' seconds include
    together = short.reshape(-1, 80, 16).mean(axis=1)
    np.testing.assert_allclose(together, long, rtol=1e-12)


def test_many_short_stalls_are_drawn_few_at_a_time():
    longer = drawn_short(2.0)  # 1000 draws, of 250 spells
    assert longer.mean() == pytest.approx(1.0, abs=0.05)


def test_ranks_of_a_node_stall_together():
    on = replace(machine(4, 4), stalls=(SHARED,))
    each = np.array([slowness(on, 0, s, np.arange(16), 0.0) for s in range(200)])
    found = each.reshape(200, 4, 4)
    assert (found == found[:, :, :1]).all()
    assert (found[:, 0] != found[:, 1]).any()


def test_a_fit_finds_the_laws_that_were_drawn():
    shared, own = fitted(0.1 * drawn(LAW, SHARED), machine(4, 4).node_of_rank)
    for law, true in ((shared, SHARED), (own, LAW)):
        assert law.among == true.among
        assert law.points[0][0] == pytest.approx(true.points[0][0], rel=0.25)
        often = np.array([0.5, 0.1]) * true.points[0][0]
        assert law.longer(often) == pytest.approx(true.longer(often), rel=0.15)
        assert law.steps == pytest.approx(true.steps, abs=1)


def test_even_work_has_no_stalls():
    assert fitted(drawn(), (0,) * 16) == ()


def test_a_machine_file_keeps_stalls():
    on = replace(machine(4, 4), stalls=(LAW, SHARED))
    assert file.from_data(file.to_data(on), "x") == on
    assert "stalls" not in file.to_data(machine())


@pytest.mark.parametrize("points", [(), ((0.1, 1), (0.2, 2)), ((0.1, 2), (0.05, 1)), ((2, 1),)])
def test_a_law_that_is_none_is_refused(points):
    with pytest.raises(CommschedError, match="stalls: point"):
        Stalls(among=RANK, points=points)


def emulated() -> Plan:
    layer = Layer(name="a", tensors=(), forward=1e-3, backward=2e-3)
    on = replace(machine(2, 2), stalls=(LAW, SHARED, SHORT))
    return Plan(net=Net(name="n", layers=(layer,)), machine=on, launches=())


def test_a_run_sleeps_as_long_as_the_simulator_says():
    plan = emulated()
    for step in (0, 1, 57):
        said = slowness(plan.machine, plan.seed, step, np.arange(4), 3e-3)
        mine = [Emulated(plan, rank).seconds(step, 1.0) for rank in range(4)]
        assert mine == said.tolist()


def test_a_timeline_tells_its_stalls(tmp_path, capsys):
    plan = emulated()
    measured = simulate(plan, steps=300).timeline()
    timeline_file.write(tmp_path / "t.json", measured)
    file.write(tmp_path / "m.json", replace(plan.machine, stalls=()))
    words = ["machine", "stalls", str(tmp_path / "t.json"), "--machine", str(tmp_path / "m.json")]
    assert main([*words, "-o", str(tmp_path / "n.json")]) == 0
    laws = file.load(tmp_path / "n.json").stalls
    assert [law.among for law in laws] == [NODE, RANK]
    assert "a node is stalled in" in capsys.readouterr().out
