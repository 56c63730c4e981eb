"""The laws of a collective: proof, repeated reading, sums equal to NumPy's, bytes as priced."""

import inspect
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import ALONE, Pair, illegal
from commsched.lab.plug_in_laws import prices
from commsched.lab.plug_in_laws.finding import Finding, Skipped, examined, require
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.schedule.check import check, exclusive
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule
from commsched.schedule.text import dumps

GRIDS = [*((1, size) for size in range(1, 18)), (2, 3), (3, 2), (2, 4), (4, 4), (3, 4), (5, 1)]
SUMMED = ((1, 2), (1, 5), (2, 3), (4, 4))  # nodes, and ranks of each
NUMEL = 301
OTHERS = "; others are refused: "


def grid(nodes: int, lanes: int, dealt: bool = False) -> Group:
    """Return groups of ranks that fill node after node, or go to the nodes in turn."""
    places = np.arange(nodes * lanes)
    on = places % nodes if dealt else places // lanes
    return Group(ranks=tuple(places.tolist()), nodes=tuple(on.tolist()))


def laws(name: str, machines: Sequence[Machine]) -> Iterator[Finding]:
    """Examine a collective, also at the sizes of the machines."""
    yield examined("text", lambda: _text(name))
    groups = [grid(*shape, dealt=dealt) for shape in GRIDS for dealt in (False, True)]
    proof = examined("proof", lambda: _proof(name, groups))
    proof = proof._replace(holds=bool(proof.holds))  # False if all groups were rejected
    yield proof
    yield examined("rounds", lambda: _read_twice(name))
    yield examined("sums", lambda: _sums(name), proof)
    yield examined("bytes", lambda: _bytes(name), proof)
    for machine in machines:
        on = f"on {machine.size} ranks"
        proof = examined(f"proof {on}", partial(_proof, name, [machine.everyone]))
        yield proof
        yield examined(f"price {on}", partial(_price, name, machine), proof)


def _text(name: str) -> str:
    """Require the text that `explain` shows: when the collective is good, and its source."""
    made = COLLECTIVES[name]
    words = set((inspect.getdoc(made) or "").replace(",", " ").split())
    missing = [word for word in ("Good", "Source:") if word not in words]
    require(not missing, f"the docstring has no {' and no '.join(map(repr, missing))} to explain")
    found = made(ALONE).name
    require(found == name, f"the schedule is named {found!r}, but registered as {name!r}")
    return "says when it is good, and its source"


def _schedules(name: str, groups: Sequence[Group]) -> tuple[list[tuple[Group, Schedule]], str]:
    """Return the groups with their schedules, and the reason why other groups are rejected."""
    made, refused = [], ""
    for group in groups:
        try:
            made.append((group, COLLECTIVES[name](group)))
        except CommschedError as error:
            refused = refused or str(error)
    if not made:
        raise Skipped(refused)
    return made, refused


def _proof(name: str, groups: Sequence[Group]) -> str:
    """Prove the schedules of the groups; the collective may reject some groups with a sentence."""
    made, refused = _schedules(name, groups)
    for _, schedule in made:
        check(schedule)
        if schedule.goal is Goal.ALL_REDUCE and not (schedule.library or schedule.shared):
            told = "several ranks add the same blocks, which rounds them several times: declare"
            require(exclusive(schedule), f"{told} `shared=True`")
        if schedule.ranks == 1 and not schedule.library:
            require(not list(schedule.rounds()), "one rank has rounds, but nothing to exchange")
    return f"{made[0][1].goal} of {len(made)} of {len(groups)} groups{refused and OTHERS}{refused}"


def _read_twice(name: str) -> str:
    for group, schedule in _schedules(name, [grid(2, 3), grid(1, 4), grid(1, 1)])[0]:
        again = dumps(schedule) == dumps(schedule)
        require(again, "`rounds` must begin anew each time; the second reading differs")
        alike = dumps(COLLECTIVES[name](group)) == dumps(schedule)
        require(alike, "two calls make different schedules, but each rank calls it alone")
    return "can be read twice"


def _summed(name: str) -> list[Group]:
    """Return the groups on which to sum a bucket."""
    reason = illegal(COLLECTIVES[name](ALONE), CODECS["dense"])
    if reason:
        raise Skipped(f"{reason}; it may be a part of methods")
    if COLLECTIVES[name](ALONE).library:
        raise Skipped("the MPI library sums and sends")
    return [group for group, _ in _schedules(name, [grid(*shape) for shape in SUMMED])[0]]


def _sums(name: str) -> str:
    """Sum whole numbers, which are exact in any order."""
    groups, rng = _summed(name), np.random.default_rng(1)
    for group in groups:
        gradients = [rng.integers(-8, 9, NUMEL).astype(np.float32) for _ in group.ranks]
        want, states = np.sum(gradients, axis=0), fresh_states(gradients)
        run_method(Pair(name, "dense"), BucketSpec.uniform(NUMEL), group, states)
        for state in states:
            equal = np.array_equal(state["result"], want)
            require(equal, f"rank {state['rank']} of {group.size} does not have NumPy's sum")
    return f"NumPy's on {', '.join(str(group.size) for group in groups)} ranks"


def _bytes(name: str) -> str:
    groups = _summed(name)
    return prices.as_sent(Pair(name, "dense"), groups, NUMEL)


def _price(name: str, machine: Machine) -> str:
    _summed(name)
    return prices.compared(f"{name}+dense", machine)
