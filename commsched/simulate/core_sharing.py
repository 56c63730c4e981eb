"""The slowdown of placed operations whose ranks share cores."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.plan.model import Plan
from commsched.program.parts import CodingTime
from commsched.simulate.cores import Tasks, both, capacities, served, served_beside, waits

TINY = 1e-300  # s, the least sum of tasks
Key = tuple[int, int, str]  # role, step and operation
Slower = dict[Key, Floats]  # factor of an operation's duration alone, (ranks,)


class _Task(NamedTuple):
    """An operation's use of the cores if nothing else uses them, (ranks,) each."""

    start: Floats  # s
    seconds: Floats
    demand: float  # cores that it keeps busy
    stream: str  # which does one operation at a time
    codes: bool
    slower: Floats | float  # how many times these seconds it was placed to last
    own: Floats | float  # s of what it takes at once as it begins, see `begun`

    @property
    def end(self) -> Floats:
        """Return when the operation ends as it was placed, s."""
        return self.start + self.seconds * self.slower


class Settling:
    """The iteration towards slowdowns that stay as they are when all is placed with them."""

    def __init__(self) -> None:
        self.slower: Slower = {}  # factors for the next placement
        self._before: dict[Key, tuple[Floats | float, Floats]] = {}  # placed with, and then found

    def go(self, found: Slower) -> None:
        """Move the factors towards the `found` ones.

        A task moves the whole way, but down to half of it if a longer placement made its found time
        shorter: two such tasks would otherwise alternate for ever.
        """
        after: Slower = {}
        for key, times in found.items():
            placed, step = self.slower.get(key, 1.0), np.ones_like(times)
            if key in self._before:
                last, last_times = self._before[key]
                change = np.asarray(placed - last)
                slope = (times - last_times) / np.where(change == 0.0, np.inf, change)
                step = 1.0 / (1.0 - np.clip(slope, -1.0, 0.0))
            self._before[key] = placed, times
            after[key] = placed + step * (times - placed)
        self.slower = after


class CoreSharing:
    """Notes the use of cores by operations while they are placed, each slowed by `slower`.

    before: the notes of the last placement.
    """

    def __init__(
        self, plan: Plan, slower: Slower | None = None, before: "CoreSharing | None" = None
    ) -> None:
        self.tasks: dict[Key, _Task] = {}
        # Role, s when something begins, and s of processor time that it takes at once.
        self.at_once: list[tuple[int, Floats, Floats]] = []
        # Role, s when an exchange begins and ends, and the cores that its interrupts take.
        self._interrupted: list[tuple[int, Floats, Floats, float]] = []
        self._machine = plan.machine
        self._coding = CodingTime.of(plan.machine, plan.net)
        self._slower = slower or {}
        self._before = before
        self._ranks_of: Sequence[Ints] = ()  # of each role
        self._waited: dict[int, tuple[Floats, Floats]] = {}  # by node, see `waited`

    def seconds(
        self,
        key: Key,
        stream: str,
        start: Floats,
        seconds: Floats,
        demand: float,
        codes: bool = False,
        own: Floats | float = 0.0,
    ) -> Floats:
        """Note an operation; return its seconds beside others: (ranks,).

        seconds: beside nothing else of the rank, while the others of its node do the same. own: s
        of them in which it does what `begun` is told of it, which does not slow it.
        """
        if not (demand and self._machine.cores):
            return seconds
        slower = self._slower.get(key, 1.0)
        self.tasks[key] = _Task(start, seconds, demand, stream, codes, slower, own)
        return seconds * slower

    def begun(self, role: int, start: Floats, seconds: Floats) -> None:
        """Note processor time that ranks take at once as they begin something: (ranks,) s."""
        if self._machine.cores and seconds.any():
            self.at_once.append((role, start, seconds))

    def interrupted(self, role: int, start: Floats, end: Floats, cores: float) -> None:
        """Note the cores that interrupts for an exchange's packets take of a rank: (ranks,) s."""
        if cores and self._machine.cores:
            self._interrupted.append((role, start, end, cores / self._machine.alone))

    def beside_coding(self, key: Key, ranks: Ints, since: Floats) -> Floats | float:
        """Return the share of `wakeup` that each message of an exchange waits for a core: (ranks,).

        Coding occupies the cores as in the last placement. since: (ranks,) s from which on the
        ranks do not compute.
        """
        before = self._before
        if before is None or key not in before.tasks:
            return 0.0
        one, found = before.tasks[key], np.zeros(len(ranks))
        lasts = np.maximum(one.end - one.start, TINY)
        nodes = np.array(self._machine.node_of_rank)[ranks]
        for node in np.unique(nodes).tolist():
            mine = nodes == node
            moments, waited = before.waited(node)
            if len(moments):
                start, end = np.maximum([one.start[mine], one.end[mine]], since[mine])
                found[mine] = np.interp(end, moments, waited) - np.interp(start, moments, waited)
        return found / lasts

    def waited(self, node: int) -> tuple[Floats, Floats]:
        """Return moments, and how long threads of a node have waited until then; see `waits`."""
        if node not in self._waited:
            of, machine = np.array(self._machine.node_of_rank), self._machine
            coding = [
                (one, of[self._ranks_of[key[0]]] == node)
                for key, one in self.tasks.items()
                if one.codes
            ]
            start = np.concatenate([one.start[mine] for one, mine in coding] or [[]])
            end = np.concatenate([one.end[mine] for one, mine in coding] or [[]])
            self._waited[node] = waits(start, end, machine.cores, machine.wakeup)
        return self._waited[node]

    def slower(self, ranks_of: Sequence[Ints]) -> tuple[Slower, float]:
        """Return how many times longer the operations last beside each other, as they are placed.

        ranks_of: the ranks of each role. Also returns the change of these times since the
        operations were placed, as a share of all their seconds.
        """
        self._ranks_of, self._before = ranks_of, None  # all is placed
        found: Slower = {}
        moved = whole = 0.0
        capacity = capacities(self._machine)
        for role, ranks in enumerate(ranks_of):
            mine = {key: one for key, one in self.tasks.items() if key[0] == role}
            mine = dict(sorted(mine.items(), key=lambda item: item[1].stream != "compute"))
            if not mine:
                continue
            start, taken = (np.array([one[i] for one in mine.values()]) for i in (0, 1))
            placed = np.array([one.end for one in mine.values()])
            demand = np.array([one.demand for one in mine.values()])
            codes = np.array([[one.codes] for one in mine.values()])
            # Coding is served at once as it begins, and shares the cores from then on.
            firsts = np.where(codes, np.minimum(taken, self._coding.slice), 0.0)
            # What an exchange does as it begins is a task beside all others but itself.
            own = np.array([np.broadcast_to(one.own, len(ranks)) for one in mine.values()])
            done = np.where(codes, firsts, np.minimum(taken, own))
            computes = np.array([one.stream == "compute" for one in mine.values()])
            times = np.ones_like(placed)
            begun = [taken_of for other, *taken_of in self.at_once if other == role]
            first, last, share = self._interrupts(role, len(ranks))
            for column, rank in enumerate(ranks.tolist()):
                stolen = Tasks(first[:, column], last[:, column], share, share)
                at_once = firsts[:, column] > 0.0
                more = taken[:, column] > done[:, column]
                tasks = Tasks(start[:, column], placed[:, column], taken[:, column], demand)
                short = tasks.cut(firsts[:, column]).some(at_once)
                end = served(short, capacity[rank], interrupts=stolen)
                times[at_once, column] = short.times(end)
                begins = tasks.start + done[:, column]
                begins[at_once] = end
                rest = tasks.after(begins, done[:, column]).some(more)
                beside = both(
                    short.longer(1.0 / self._coding.alone),
                    self._taken_at_once([(a[column], b[column]) for a, b in begun]),
                )
                queue = rest.queues(computes[more])
                end = served_beside(rest, beside, capacity[rank], queue, stolen)
                lasts = rest.times(end, queue) * rest.seconds + (rest.start - tasks.start[more])
                times[more, column] = lasts / tasks.seconds[more]
            for key, slower in zip(mine, times, strict=True):
                one = mine[key]
                moved += float((one.seconds * np.abs(slower - one.slower)).sum())
                whole += float((one.seconds * slower).sum())
                found[key] = slower
        return found, moved / max(whole, TINY)

    def _interrupts(self, role: int, ranks: int) -> tuple[Floats, Floats, Floats]:
        """Return when a role's exchanges begin and end, (n, ranks) s, and what they interrupt."""
        mine = [one[1:] for one in self._interrupted if one[0] == role]
        if not mine:
            return np.empty((0, ranks)), np.empty((0, ranks)), np.empty(0)
        first, last, share = zip(*mine, strict=True)
        return np.array(first), np.array(last), np.array(share)

    def _taken_at_once(self, begun: Sequence[tuple[float, float]]) -> Tasks:
        """Return the processor time taken as operations begin; begun: (s, s of processor time)."""
        start, taken = np.array(begun, np.float64).reshape(-1, 2).T
        some = taken > 0.0
        start, lasts = start[some], taken[some] / self._machine.alone
        return Tasks(start, start + lasts, lasts, np.ones_like(lasts))
