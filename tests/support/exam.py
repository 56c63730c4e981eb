"""The exam of every method on real ranks: 8 of them, and all smaller groups as parts of the 8.

    mpiexec -n 8 python -m tests.support.exam [--whole|--some] FOLDER NAME...

NAMEs are codecs and methods to examine beside the listed ones. Every rank leaves a file in FOLDER:
per case what was wrong in it, a sentence each.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.exchange.endpoint import Endpoint, GatheringEndpoint, open_endpoint
from commsched.exchange.lockstep import exchange, fresh_states
from commsched.exchange.method import Choice, Method
from commsched.exchange.pair import Pair, route
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.machine.level import LevelShape
from commsched.machine.model import Group
from commsched.methods.node_union import method as node_union
from commsched.run.engine.prepare import prepared
from commsched.run.engine.prepared_exchange import Prepared
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import Pacer
from commsched.run.job.clock import now
from commsched.run.wire.host import CUT, PlainPath
from commsched.run.wire.path import Exchange
from tests.support import sample_methods, sampling
from tests.support.gradients import SUPPORTS, bits, gradient, rounded, spec
from tests.support.ranks import meet

# Ranks on each node of the groups that are examined side by side; they are all ranks together.
SPLITS = (((4, 4),), ((4, 3), (1,)), ((3, 3), (1, 1)), ((1,) * 5, (2, 1)), ((2, 2), (4,)))
TREES = {
    (4, 4): (LevelShape(2), LevelShape(4), LevelShape(8)),
    (4,): (LevelShape(4, (2, 2)),),
}  # others have two levels
SHAPES = [shape for split in SPLITS for shape in split]
UNLISTED_TOO = ((1, 1), (2, 1), (4, 3))  # take what is not listed, too: it is of the same codecs
# Steps with one state. "rounded": sums that round; "mixed": another support on every rank.
SERIES = ((300, ("rounded", "empty", "one", "alone", "skewed", "full")),)
FEWER = ((300, ("rounded", "empty", "skewed")),)  # by day
FURTHER = ((300, ("mixed",)), (5, ("empty", "full")), (1, ("alone",)))  # for what is listed
BROKEN = ((7, ("broken",)),)  # a NaN on the last rank, which all must see
SHORT = ((301, ("rounded", "mixed", "empty")),)
LONG = tuple((numel, ("rounded", "mixed")) for numel in (128, 197, 256))  # some end at a cut
PAIRS_TURN, METHODS_TURN = 7, 4  # by day each is examined in one shape of this many
ABREAST = 64  # cases that a rank has under way
PATIENCE = 30.0  # s without a message

Series = tuple[tuple[int, tuple[str, ...]], ...]


class Case(NamedTuple):
    """A method under examination."""

    name: str
    method: Method
    series: Series = SERIES
    cut: int = CUT  # B of the longest message


def title(shape: Sequence[int], name: str) -> str:
    """What a case is called."""
    return f"{'+'.join(map(str, shape))} {name}"


def group_of(shape: Sequence[int]) -> Group:
    """Ranks that fill nodes, by the ranks of each node."""
    nodes = np.repeat(range(len(shape)), shape).tolist()
    levels = TREES.get(tuple(shape), ())
    return Group(ranks=tuple(range(len(nodes))), nodes=tuple(nodes), levels=levels)


def cases(shape: Sequence[int], names: Sequence[str]) -> list[Case]:
    """Every legal pair and every method of several phases, and those that are for tests only.

    Shapes in UNLISTED_TOO take the unlisted `names`, too. By day each is examined in some of
    the shapes, in turn.
    """
    members, names = group_of(shape), names if tuple(shape) in UNLISTED_TOO else ()
    listed = {method.name for method in legal_methods(members)}
    series = SERIES if sampling.whole else FEWER
    found = [
        Case(m.name, m, series + BROKEN + FURTHER * (m.name in listed))
        for m in legal_methods(members, more=names)
    ]
    found += [Case(method.name, method) for method in sample_methods.ALL]
    place = SHAPES.index(tuple(shape))
    return [
        case for number, case in enumerate(found) if sampling.whole or in_turn(case, number, place)
    ]


def in_turn(case: Case, number: int, place: int) -> bool:
    """Whether a case is examined by day in the shape at a place."""
    return (number + place) % (PAIRS_TURN if isinstance(case.method, Pair) else METHODS_TURN) == 0


def in_pieces() -> list[Case]:
    """Cases of long messages in pieces, and of short pieces that are coded on their way."""
    cut = ("ring+dense", "direct+fp16", "native+dense", "all-gather+coo", "tree+coo")
    return [
        *(Case(f"{name} in pieces of 64 B", find_method(name), LONG, 64) for name in cut),
        Case("node-union in pieces of 16 B", METHODS["node-union"], SHORT),
        # Of some the longest packet is known to be shorter than that, others are probed for.
        Case("node-union in messages of 64 B", METHODS["node-union"], LONG, 64),
    ]


@lru_cache
def inputs(series: Series, ranks: int) -> list[tuple[int, str, list[np.ndarray]]]:
    """The number of each step in its series, its support, and every rank's gradient, (n,)."""
    found = []
    for numel, kinds in series:
        for step, kind in enumerate(kinds):
            if kind in ("rounded", "broken"):
                grads = rounded(ranks, numel, step)
                grads[-1][0] *= np.nan if kind == "broken" else 1
            else:
                of = SUPPORTS[1:] if kind == "mixed" else (kind,)
                grads = [gradient(of[r % len(of)], r, numel, step) for r in range(ranks)]
            found.append((step, kind, grads))
    return found


class Counted:
    """One rank's side of an exchange in lockstep, with the bytes that leave it."""

    def __init__(self, held: Endpoint) -> None:
        self._held = held
        self.add, self.put, self.result = held.add, held.put, held.result
        self.sent = 0

    def take(self, first: int, stop: int) -> np.ndarray:
        packet = self._held.take(first, stop)
        self.sent += packet.nbytes
        return packet


def reference(method: Method, members: Group, states: list[dict]) -> list[int]:
    """Run a step in this process: bytes that each rank sends."""
    sent = [0] * members.size
    for phase in method.phases(spec(len(states[0]["gradient"])), members):
        if isinstance(phase, Choice):
            phase = phase.then(phase.agreed(map(phase.vote, states)))
        held = [Counted(open_endpoint(phase, state)) for state in states]
        exchange(phase.schedule, held)
        for state, each in zip(states, held, strict=True):
            phase.give(state, each.result())
        sent = [total + each.sent for total, each in zip(sent, held, strict=True)]
    return sent


class Taken(NamedTuple):
    """What one rank found in a case, all steps after each other."""

    results: list[np.ndarray]  # (n,) float32 of each step
    sent: list[int]  # B of each step


@contextmanager
def noted(case: Case) -> Iterator[None]:
    """Say in which case an error was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {case.name}")
        raise


class Candidate:
    """One rank's part of a case, from exchange to exchange."""

    def __init__(self, case: Case, members: Group, comm: MPI.Intracomm, tag: int) -> None:
        self.case, self._members, self._comm, self._tag = case, members, comm, tag
        self.taken = Taken([], [])
        self._way = self._steps()
        with noted(case):
            self.under_way: Exchange | None = next(self._way)

    def progress(self) -> bool:
        """Do what can be done now; True where something happened."""
        assert self.under_way is not None
        before = self.under_way.moves
        with noted(self.case):
            if not self.under_way.progress():
                return self.under_way.moves != before
            self.under_way = next(self._way, None)
        return True

    def _begin(self, schedule, held: Endpoint) -> Exchange:
        way = schedule, held, self._comm, self._tag, PlainPath(self.case.cut)
        return prepared(*way) or begin(*way)

    def _steps(self) -> Iterator[Exchange]:
        """Every exchange of every step, votes included."""
        rank, state = self._comm.rank, {}
        for step, _, grads in inputs(self.case.series, self._comm.size):
            if step == 0:
                state = fresh_states([np.zeros_like(g) for g in grads], 5, "b0")[rank]
            state["gradient"][:], state["step"] = grads[rank], step
            sent = 0
            for phase in self.case.method.phases(spec(len(grads[rank])), self._members):
                if isinstance(phase, Choice):
                    vote = np.array([phase.vote(state)]).view(np.uint8)
                    ballots = GatheringEndpoint({rank: vote}, [*range(self._comm.size)])
                    yield self._begin(route("all-gather", self._members), ballots)
                    votes = [float(each.view(np.float64)[0]) for each in ballots.result()]
                    phase = phase.then(phase.agreed(votes))
                held = open_endpoint(phase, state)
                under_way = self._begin(phase.schedule, held)
                yield under_way
                phase.give(state, held.result())
                sent += under_way.sent
                if isinstance(under_way, Prepared):
                    under_way.free()
            self.taken.results.append(state["result"].copy())
            self.taken.sent.append(sent)


def sit(some: Sequence[Case], members: Group, comm: MPI.Intracomm) -> list[Taken]:
    """Take all cases on this rank, several under way at a time; tags tell them apart."""
    under_way: list[Candidate] = []
    found: dict[str, Taken] = {}
    waiting = enumerate(some)
    pacer, last = Pacer(), now()
    while True:
        begun = islice(waiting, ABREAST - len(under_way))
        under_way += [Candidate(case, members, comm, tag) for tag, case in begun]
        if not under_way:
            return [found[case.name] for case in some]
        moved = [each.progress() for each in under_way]
        found |= {each.case.name: each.taken for each in under_way if each.under_way is None}
        under_way = [each for each in under_way if each.under_way is not None]
        if any(moved):
            pacer.busy()
            last = now()
        elif now() - last > PATIENCE:
            stuck = [f"{each.case.name}: {each.under_way.waiting()}" for each in under_way]
            raise TimeoutError("\n".join(stuck))
        else:
            pacer.rest()


def graded(case: Case, members: Group, results: list[np.ndarray], sent: np.ndarray) -> list[str]:
    """What is wrong with a case; results: (ranks, n) of each step; sent: (ranks, steps) B."""
    states, wrong = [], []
    for number, (step, kind, grads) in enumerate(inputs(case.series, members.size)):
        if step == 0:
            states = fresh_states([np.zeros_like(each) for each in grads], 5, "b0")
        for state, values in zip(states, grads, strict=True):
            state["gradient"][:], state["step"] = values, step
        problems = told(case.method, kind, results[number], np.sum(grads, axis=0))
        if getattr(case.method, "collective", "") != "native":
            wanted = reference(case.method, members, states)
            if sent[:, number].tolist() != wanted:
                problems.append(f"{sent[:, number].tolist()} B were sent instead of {wanted}")
            pairs = zip(results[number], states, strict=True)
            if any((bits(own) != bits(state["result"])).any() for own, state in pairs):
                problems.append("other bits than in lockstep")
        where = f"{len(grads[0])} elements, step {step}, {kind}"
        wrong += [f"{where}: {problem}" for problem in problems]
    return wrong


def told(method: Method, kind: str, found: np.ndarray, total: np.ndarray) -> list[str]:
    """What the results of all ranks, (ranks, n), are not, but should be."""
    if kind == "broken":  # how far a NaN spreads depends on the runs that a rank codes
        seen = not np.isfinite(found).all(axis=1).any()
        return [] if seen else ["a NaN does not reach all ranks"]
    wrong = []
    if method.lossless and kind != "rounded" and (found != total).any():
        wrong.append("not the sum")
    # Sums of at most 8 normal numbers, each rounded to 24 bits.
    if method.lossless and not np.allclose(found, total, rtol=0, atol=1e-5):
        wrong.append("far from the sum")
    if (bits(found) != bits(found[0])).any():
        wrong.append("other bits on other ranks")
    return wrong


def examine(some: Sequence[Case], members: Group, comm: MPI.Intracomm) -> dict[str, list[str]]:
    """Take all cases together, then grade this rank's share of them."""
    return shared_out(some, sit(some, members, comm), members, comm)


def shared_out(
    some: Sequence[Case], taken: Sequence[Taken], members: Group, comm: MPI.Intracomm
) -> dict[str, list[str]]:
    """Grade this rank's share of the cases that all ranks have taken: what is wrong in each."""
    mine = np.concatenate([result for each in taken for result in each.results])
    counts = np.array([count for each in taken for count in each.sent])
    results = np.empty((comm.size, len(mine)), np.float32)
    sent = np.empty((comm.size, len(counts)), np.int64)
    comm.Allgather(mine, results)
    comm.Allgather(counts, sent)
    found, at, first = {}, 0, 0
    for number, (case, each) in enumerate(zip(some, taken, strict=True)):
        cuts = np.cumsum([at, *map(len, each.results)])
        steps, at, first = slice(first, first + len(each.sent)), cuts[-1], first + len(each.sent)
        if number % comm.size == comm.rank:
            given = [results[:, a:b] for a, b in pairwise(cuts.tolist())]
            found[case.name] = graded(case, members, given, sent[:, steps])
    return found


def main(folder: Path, names: Sequence[str]) -> None:
    """Examine every shape; groups of a split work side by side."""
    world, found, whole = MPI.COMM_WORLD, {}, node_union.PIECE
    for split in SPLITS:
        assert sum(map(sum, split)) == world.size
        meet(world)
        colour = int(np.repeat(range(len(split)), [*map(sum, split)])[world.rank])
        shape, comm = split[colour], world.Split(colour)
        members = group_of(shape)
        wrong = examine(cases(shape, names), members, comm)
        node_union.PIECE = 16  # B
        wrong |= examine(in_pieces(), members, comm)
        node_union.PIECE = whole
        found |= {title(shape, name): problems for name, problems in wrong.items()}
        comm.Free()
    (folder / f"{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    try:
        sampling.whole = sys.argv[1] == "--whole"
        main(Path(sys.argv[2]), sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
