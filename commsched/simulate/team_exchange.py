"""An exchange that several equal teams of ranks do alone, at the price of one team."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost import price
from commsched.cost.play import Played, moves_up_to
from commsched.cost.shared_ports import alongside
from commsched.exchange.method import Phase
from commsched.exchange.registry import find_method
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.schedule.rounds import Round, Schedule


class Exchanged(NamedTuple):
    """What an exchange of teams costs each member, (teams, members)."""

    end: Floats  # s
    sent: Floats  # B handed to MPI
    rest: Floats  # s that its port has been idle at its end


class ExchangeTeams(NamedTuple):
    """The teams that take part in an exchange."""

    ranks: Ints  # (teams, members)
    first: Group  # of the first team
    everyone: Group  # of all teams, one after the other
    kinds: tuple[tuple[Machine, Group], ...] = ()  # of teams that are priced alone; () if together
    kind: Ints = np.zeros(1, np.int64)  # of each team


@lru_cache(maxsize=2048)
def teams_of(plan: Plan, launch: int, number: int | None) -> ExchangeTeams:
    """Return the teams of a launch, or only one of them; launch -1 has all ranks as a team."""
    if launch < 0:
        everyone = plan.machine.everyone
        return ExchangeTeams(np.array([everyone.ranks], np.int64), everyone, everyone)
    ranks = plan.teams(plan.launches[launch])
    if number is not None:
        ranks = ranks[number : number + 1]
    if plan.launches[launch].split > 1:
        first = plan.team(ranks[0])
        return ExchangeTeams(ranks, first, first, *_kinds(plan, ranks))
    if len(ranks) == 1 and ranks.size == plan.machine.size and (np.diff(ranks[0]) == 1).all():
        return ExchangeTeams(ranks, plan.machine.everyone, plan.machine.everyone)
    return ExchangeTeams(ranks, plan.team(ranks[0]), plan.team(ranks.ravel()))


def _kinds(plan: Plan, ranks: Ints) -> tuple[tuple[tuple[Machine, Group], ...], Ints]:
    """Return a team of each kind, with the machine as it sees it, and the kind of each team.

    Teams are alike that lie alike on the nodes and have equal shares of their ports.
    """
    number: dict[object, int] = {}
    kinds, kind = list[tuple[Machine, Group]](), list[int]()
    for team in ranks:
        group = plan.team(team)
        on = alongside(plan.machine, group)
        shape: object = group.nodes if on.overrides else group.members
        key = group.ranks if group.levels else shape, on.nic
        if key not in number:
            number[key] = len(kinds)
            kinds.append((on, group))
        kind.append(number[key])
    return tuple(kinds), np.array(kind, np.int64)


@lru_cache(maxsize=2048)
def content_of(plan: Plan, launch: int) -> BucketSpec | int:
    """Return what tells a launch's bucket from others that cost another time."""
    own = plan.launches[launch]
    spec = find_method(own.method).seen(plan.spec(own), plan.group(own))
    dense = all(law.law == "dense" for law, *_ in spec.pieces)
    return spec.numel if dense and spec.slots is None and not spec.widths else spec


@lru_cache(maxsize=2048)
def machine_of(plan: Plan, launch: int) -> Machine:
    """Return the machine as a launch sees it while the ranks outside its group exchange, too."""
    if launch < 0 or not plan.launches[launch].in_teams:
        return plan.machine
    return alongside(plan.machine, plan.group(plan.launches[launch]))


def exchanged(
    machine: Machine,
    phase: Phase | None,
    teams: ExchangeTeams,
    start: Floats,
    rest: Floats,
    limit: int = price.LIMIT,
    of_team: tuple[dict[object, Exchanged], object] | None = None,
) -> Exchanged:
    """Price an exchange of teams whose members arrive at `start`; without a phase, their votes.

    start, rest: (teams, members) s. All teams together are played up to `limit` moves. Beyond,
    or with one team, see `price.exchange`: teams then take equally long from the start of
    their last member on. of_team: what is known of single teams, and what tells this exchange.
    """
    if phase is None:
        assert len(start) == 1, "all ranks vote together"
        votes = price.votes(machine, teams.first, start[0], rest[0])
        return _of(votes, start.shape)
    payload, schedule, count = phase.payload, phase.schedule, len(start)
    whole = count == 1 or not (teams.kinds or schedule.library)
    most = limit // count
    if whole and (count == 1 or moves_up_to(schedule, most) <= most):
        group = teams.first if count == 1 else teams.everyone
        schedule = schedule if count == 1 else side_by_side(schedule, count)
        played = price.exchange(
            schedule,
            payload,
            machine,
            group,
            start.ravel(),
            limit=limit,
            rest=rest.ravel(),
        )
        return _of(played, start.shape)
    known, key = ({}, None) if of_team is None else of_team
    one = known.get(key)
    if one is None:
        kinds, most = (teams.kinds, limit) if teams.kinds else (((machine, teams.first),), 0)
        each = [_alone(phase, on, team, most) for on, team in kinds]
        one = Exchanged(*(np.array(some)[teams.kind] for some in zip(*each, strict=True)))
    if key is not None:
        known[key] = one
    sent, left = (np.broadcast_to(each, start.shape) for each in one[1:])
    return Exchanged(start.max(axis=1, keepdims=True) + one.end, sent, left)


def _of(played: Played, shape: tuple[int, ...]) -> Exchanged:
    """Return the costs of an exchange by teams and members."""
    rest = np.broadcast_to(played.rest, played.end.shape)
    return Exchanged(*(each.reshape(shape) for each in (played.end, played.sent, rest)))


def _alone(phase: Phase, machine: Machine, team: Group, limit: int) -> Exchanged:
    """Return the costs of the members of a team, which all begin together: (members,) each."""
    # Formulas take packets as equally long; where some are longer, the busiest rank counts.
    most = limit if phase.payload.uneven else 0
    start = np.zeros(team.size)
    played = price.exchange(phase.schedule, phase.payload, machine, team, start, limit=most)
    return _of(played, start.shape)


@lru_cache(maxsize=64)
def side_by_side(schedule: Schedule, teams: int) -> Schedule:
    """Repeat a schedule in several teams: member m of team t is rank t * members + m.

    It prices all teams at once. Blocks keep their numbers, since no block leaves its team; so it
    does not reach the schedule's goal among all.
    """

    def rounds() -> Iterator[Round]:
        before = np.arange(teams)[:, np.newaxis] * schedule.ranks
        src = dst = many_src = many_dst = np.zeros(0, np.int64)
        for rnd in schedule.rounds():
            if rnd.src is not src or rnd.dst is not dst:
                src, dst = rnd.src, rnd.dst
                many_src, many_dst = (before + src).ravel(), (before + dst).ravel()
            first, stop = np.tile(rnd.first, teams), np.tile(rnd.stop, teams)
            merged = rnd.merged if isinstance(rnd.merged, int) else np.tile(rnd.merged, teams)
            yield Round(many_src, many_dst, first, stop, rnd.add, merged, rnd.waits)

    return Schedule(
        name=schedule.name,
        goal=schedule.goal,
        ranks=teams * schedule.ranks,
        blocks=schedule.blocks,
        rounds=rounds,
        owner=schedule.owner,
    )
