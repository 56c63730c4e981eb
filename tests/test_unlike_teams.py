"""Teams of one launch that lie differently on the nodes: each takes as long as it does alone."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cost import price
from commsched.cost.shared_ports import alongside
from commsched.exchange.method import resolved
from commsched.exchange.registry import find_method
from commsched.machine.model import Nic
from commsched.simulate.team_exchange import exchanged, machine_of, teams_of
from tests.support.small_plans import SLOW, graph, machine, plan


@pytest.mark.parametrize("lanes", [2, 3])
@pytest.mark.parametrize("nic", [None, Nic(per_node=1, per_byte=1e-8)])
def test_each_team_takes_as_long_as_it_does_alone(lanes, nic):
    slower = replace(SLOW, per_byte=10 * SLOW.per_byte)
    on = replace(machine(12 // lanes, lanes), nic=nic, overrides={12 // lanes - 1: slower})
    made = plan(graph([9_000]), on, ["ring+dense"])
    made = replace(made, launches=tuple(replace(each, split=3) for each in made.launches))
    teams = teams_of(made, 0, None)
    start = np.zeros(teams.ranks.shape)
    launch = made.launches[0]
    (phase,) = map(resolved, find_method(launch.method).phases(made.spec(launch), teams.first))
    found = exchanged(machine_of(made, 0), phase, teams, start, start)
    for ranks, end in zip(teams.ranks, found.end, strict=True):
        team = made.team(ranks)
        alone = price.exchange(
            phase.schedule, phase.payload, alongside(on, team), team, np.zeros(4), limit=0
        )
        np.testing.assert_allclose(end, alone.end, rtol=1e-12)
    assert len({*found.end.max(axis=1)}) > 1
