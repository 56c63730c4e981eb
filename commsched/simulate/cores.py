"""The sharing of a node's cores among compute, coding and exchanges."""

from typing import NamedTuple

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.machine.model import Machine

ROUNDS = 8  # placements at most, until tasks that slow each other have settled
SHARES = 6  # rounds in which the shares of short tasks settle
TOGETHER = 1e-9  # s between tasks that follow each other at once
SETTLED = 1e-3  # relative change of a task's seconds that counts as none


class Tasks(NamedTuple):
    """The tasks of one rank's threads, (n,) each."""

    start: Floats  # s
    end: Floats  # s, as placed
    seconds: Floats  # that the task takes on cores of its own
    demand: Floats  # cores that it keeps busy, more than 0 and at most 1

    def some(self, where: Ints | Bools) -> "Tasks":
        """Return the tasks at some places."""
        return Tasks(*(column[where] for column in self))

    def cut(self, seconds: Floats) -> "Tasks":
        """Return the first seconds of each task, (n,), as placed."""
        share = np.minimum(seconds / np.maximum(self.seconds, TOGETHER), 1.0)
        return Tasks(self.start, self.start + share * (self.end - self.start), seconds, self.demand)

    def after(self, start: Floats, seconds: Floats) -> "Tasks":
        """Return the rest of each task from `start` on, without its first seconds, (n,)."""
        return Tasks(start, np.maximum(self.end, start), self.seconds - seconds, self.demand)

    def longer(self, times: float) -> "Tasks":
        """Return tasks that last `times` times as long."""
        end = self.start + times * (self.end - self.start)
        return self._replace(end=end, seconds=times * self.seconds)

    def times(self, end: Floats, queue: Ints | None = None) -> Floats:
        """Return how many times its seconds each task lasts until `end`, (n,) s."""
        start = self.start
        if queue is not None and len(queue):
            follows = np.append(False, queue[1:] == queue[:-1])
            start = np.where(follows, np.append(0.0, end[:-1]), start)
        return (end - start) / self.seconds

    def queues(self, where: Bools) -> Ints:
        """Number the tasks, (n,); those `where` that follow each other at once get one number.

        Tasks of one stream are in the order of their starts.
        """
        found = np.arange(len(self.start))
        some = np.flatnonzero(where)
        follows = np.append(False, self.start[some[1:]] <= self.end[some[:-1]] + TOGETHER)
        found[some] = some[np.maximum.accumulate(np.where(follows, 0, np.arange(len(some))))]
        return found


NONE = Tasks(*np.empty((4, 0)))


def both(one: Tasks, other: Tasks) -> Tasks:
    """Return the tasks of both."""
    return Tasks(*(np.append(a, b) for a, b in zip(one, other, strict=True)))


def capacities(machine: Machine) -> Floats:
    """Return the cores that the threads of each rank share, (ranks,); inf: not modelled.

    The seconds of a machine and a net hold while all n ranks of a node do the same, each on c / n
    of its c cores; in these units each rank has max(1, c / n) cores.
    """
    node = np.array(machine.node_of_rank)
    if not machine.cores:
        return np.full(len(node), np.inf)
    found: Floats = np.maximum(1.0, machine.cores / np.bincount(node))[node]
    return found


def waits(start: Floats, end: Floats, cores: float, most: float) -> tuple[Floats, Floats]:
    """Return moments, and the integral up to each of a thread's wait for a core: (m,) each.

    A thread that wakes up while tasks occupy all cores of a node waits until a core is free, but
    `most` s at the most. start, end: of the tasks, (n,) s. The wait is counted in units of `most`,
    so that the integral is in s; it is linear between two moments.
    """
    moments = np.concatenate([start, end])
    order = np.argsort(moments, kind="stable")
    time, depth = moments[order], np.cumsum(np.where(order < len(start), 1, -1))
    full = np.append(False, depth >= max(cores, 1.0))
    begins, ends = time[full[1:] & ~full[:-1]], time[~full[1:] & full[:-1]]
    lasts = ends - begins
    wait = np.where(lasts > most, lasts - most / 2, lasts**2 / max(2 * most, TOGETHER))
    total = np.cumsum(wait)
    return np.stack([begins, ends], axis=1).ravel(), np.stack([total - wait, total], axis=1).ravel()


def served(
    tasks: Tasks, capacity: float, queue: Ints | None = None, interrupts: Tasks = NONE
) -> Floats:
    """Return when each task ends beside the others as they are placed: (n,) s.

    queue: (n,) numbers of queues; equal ones of equal demand follow each other without a pause, in
    the order of the tasks. None: each task is alone.

    Processor sharing: a task that needs less than an equal share gets its need, the others share
    the rest equally (max-min fairness; Bertsekas and Gallager, "Data Networks", 1992, section 6.5).
    Interrupts come before all tasks, but get at most half of the cores: Linux leaves the rest of
    their work to a separate thread (ksoftirqd).
    """
    start, end, seconds, demand = tasks
    count = len(start)
    moments = np.concatenate([start, end, interrupts.start, interrupts.end])
    order = np.argsort(moments, kind="stable")
    time, wants = moments[order], np.unique(demand)
    gaps = np.diff(time)
    mine = demand == wants[:, np.newaxis]
    none = np.zeros((len(wants), len(moments) - 2 * count), np.int64)
    steps = np.concatenate([mine, -1 * mine, none], axis=1)[:, order]
    taken = np.concatenate([np.zeros(2 * count), interrupts.demand, -interrupts.demand])[order]
    left = np.maximum(capacity - np.cumsum(taken)[:-1], capacity / 2)
    crowd = _Crowd(wants, np.cumsum(steps, axis=1)[:, :-1], left)
    if crowd.fits and (end <= start + seconds * (1.0 + SETTLED)).all():
        return end
    found, queue = end.copy(), np.arange(count) if queue is None else queue
    share = crowd.share
    for kind, want in enumerate(wants.tolist()):
        inside, beyond = (  # service of such a task up to each moment, as one of those and besides
            np.append(0.0, np.cumsum(np.minimum(cores / want, 1.0) * gaps))
            for cores in (share, crowd.share_of_another(kind))
        )
        _, first, number, length = np.unique(
            queue[mine[kind]], return_index=True, return_inverse=True, return_counts=True
        )
        begun = start[mine[kind]][first][number]
        until = end[mine[kind]][first + length - 1][number]
        asked = np.cumsum(seconds[mine[kind]])
        asked -= (asked - seconds[mine[kind]])[first][number]
        target = np.interp(begun, time, inside) + asked
        there = np.interp(until, time, inside)
        left = target - there + np.interp(until, time, beyond)
        later = np.interp(left, beyond, time) + np.maximum(left - beyond[-1], 0.0)
        found[mine[kind]] = np.where(target <= there, np.interp(target, inside, time), later)
    return found


def served_beside(
    tasks: Tasks,
    short: Tasks,
    capacity: float,
    queue: Ints | None = None,
    interrupts: Tasks = NONE,
) -> Floats:
    """Return when each of the tasks ends beside short ones: (n,) s.

    Short tasks end as placed, because schedulers serve a woken thread at once for a slice (Linux,
    "EEVDF Scheduler"). The time they got counts as their share of the cores from then on.
    """
    count, every = len(tasks.start), both(tasks, short)
    own = np.arange(count) if queue is None else queue
    queue = np.append(own, own.max(initial=0) + 1 + np.arange(len(short.start)))
    for _ in range(SHARES):
        end = served(every, capacity, queue, interrupts)
        later = np.abs(end[count:] - every.end[count:])
        every = every._replace(end=np.append(tasks.end, end[count:]))
        if (later <= SETTLED * every.seconds[count:]).all():
            break
    return end[:count]


class _Crowd:
    """The tasks under way between moments, and the share of the cores that each gets.

    wants: ascending demands, (kinds,); counts: tasks of each, (kinds, moments); capacity: cores for
    all of them, (moments,). Tasks of the least demands get their demand, the others share the rest
    equally. A wrong number of tasks that get their demand gives a smaller equal share, so the
    largest share is the right one.
    """

    def __init__(self, wants: Floats, counts: Ints, capacity: Floats) -> None:
        self._wants = wants
        self._rest = np.empty(counts.shape)  # cores that tasks of lesser demands leave
        self._others = np.empty(counts.shape)  # tasks of each demand and of greater ones
        rest, others = capacity, counts.sum(axis=0)
        for kind, want in enumerate(wants.tolist()):
            self._rest[kind], self._others[kind] = rest, others
            rest, others = rest - want * counts[kind], others - counts[kind]
        self.fits = bool((rest >= -capacity * SETTLED).all())  # whether all have what they want

    @property
    def share(self) -> Floats:
        """Return the cores that a task may have between moments, (moments,)."""
        found: Floats = (self._rest / np.maximum(self._others, 1)).max(axis=0)
        return found

    def share_of_another(self, kind: int) -> Floats:
        """Return the cores that one more task of a demand could have, (moments,)."""
        above = kind + 1
        found: Floats = (self._rest[:above] / (self._others[:above] + 1)).max(axis=0)
        if above < len(self._wants):
            rest, others = self._rest[above:] - self._wants[kind], self._others[above:]
            found = np.maximum(found, (rest / np.maximum(others, 1)).max(axis=0))
        return found
