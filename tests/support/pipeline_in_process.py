"""The ranks of a pipeline that learns, all in one process: programs by their dependencies."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from commsched.kernels.modules import module_of
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.train.forward_backward import Score
from commsched.train.workers.trainee import Trainee

Sum = Callable[[list[np.ndarray]], np.ndarray]


def in_rank_order(parts: list[np.ndarray]) -> np.ndarray:
    """float32 sums, the first rank's first."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def of_halves(parts: list[np.ndarray]) -> np.ndarray:
    """The same of halves, each sum rounded to one."""
    return in_rank_order([part.astype(np.float16) for part in parts]).astype(np.float32)


class Crew:
    """All ranks of a plan; each stream of each rank is in order, ranks take turns at random."""

    def __init__(
        self, plan: Plan, ranks: Sequence[Trainee], add: Sum = in_rank_order, seed: int = 0
    ) -> None:
        self.plan, self.ranks, self._add = plan, ranks, add
        self._drawn = random.Random(seed)
        self.scores: list[Score] = []  # by step
        self.overflows: list[bool] = []
        self.decisions: dict[str, float] = {}
        for each in ranks:
            each.report = self._report
            each.overflowed = self._overflowed

    def _report(self, step: int, score: Score, overflow: bool) -> None:
        if step == len(self.scores):
            self.scores.append(Score(0.0, 0, 0))
            self.overflows.append(False)
        self.scores[step] = self.scores[step].plus(score)
        self.overflows[step] |= overflow

    def _overflowed(self, step: int) -> bool:
        if STRATEGIES[self.plan.strategy].decides:
            return self.decisions[f"{step}/overflow/decide"] > 0
        return self.overflows[step]

    @property
    def losses(self) -> list[float]:
        return [score.loss / score.guesses for score in self.scores]

    def train(self, steps: range) -> "Crew":
        for step in steps:
            self._step(step)
        return self

    def _step(self, step: int) -> None:
        roles = STRATEGIES[self.plan.strategy].lower(self.plan, step, {}).roles
        self._roles = roles
        self._done: dict[int, set[str]] = {rank: set() for rank in range(len(self.ranks))}
        self._post: dict[tuple[int, str], np.ndarray] = {}
        waiting: dict[tuple[int, str, int], list[Op]] = {}
        for role in roles:
            for rank in role.ranks:
                for op in role.ops:
                    # Messages may come in any order.
                    key = (rank, op.name if op.kind is Kind.RECV else op.stream, op.urgency)
                    waiting.setdefault(key, []).append(op)
        while waiting:
            able = [key for key, queue in waiting.items() if self._able(key[0], step, queue[0])]
            assert able, [queue[0].name for queue in waiting.values()]
            key = self._drawn.choice(able)
            op = waiting[key].pop(0)
            if not waiting[key]:
                del waiting[key]
            self._do(key[0], step, op)
            self._done[key[0]].add(op.name)

    def _able(self, rank: int, step: int, op: Op) -> bool:
        if op.kind is Kind.RECV:
            return (rank, op.name) in self._post
        if any(after.name not in self._done[rank] for after in op.after):
            return False
        everyone = range(len(self.ranks))
        if op.kind is Kind.APPLY and not STRATEGIES[self.plan.strategy].decides:
            return all(self._ended(each) for each in everyone)  # a tally has all scores
        if op.kind is Kind.DECIDE:
            return all(self._ended(each) for each in everyone)
        if op.kind is Kind.DECODE:
            members = self.plan.group(self.plan.launches[op.launch]).ranks
            return all(op.after[0].name in self._done[each] for each in members)
        return True

    def _ended(self, rank: int) -> bool:
        """Whether all its microbatches have gone back."""
        (role,) = (role for role in self._roles if rank in role.ranks)
        return {op.name for op in role.ops if op.kind is Kind.COMPUTE} <= self._done[rank]

    def _do(self, rank: int, step: int, op: Op) -> None:
        own = self.ranks[rank]
        if op.kind in (Kind.COMPUTE, Kind.APPLY):
            own.perform(step, op)
        elif op.kind is Kind.SEND:
            place = next(role.ranks.index(rank) for role in self._roles if rank in role.ranks)
            assert own.mail is not None
            packet = own.mail.outgoing(step, op)
            assert packet.nbytes == op.nbytes
            self._post[self._roles[op.peer].ranks[place], op.match] = packet.copy()
        elif op.kind is Kind.RECV:
            assert own.mail is not None
            own.mail.incoming(step, op, self._post.pop((rank, op.name)))
        elif op.kind is Kind.DECODE:
            own.result(step, op.launch, self._sum(step, op.launch))
        elif op.kind is Kind.DECIDE:
            votes = [each.vote(step) for each in self.ranks]
            self.decisions[f"{step}/{op.name}"] = sum(votes) / len(votes)

    def _sum(self, step: int, launch: int) -> np.ndarray:
        made = self.plan.launches[launch]
        members, parts = self.plan.group(made).ranks, []
        for rank in members:
            module = module_of(next(iter(self.ranks[rank].values.values())))
            parts.append(module.empty(self.plan.spec(made).numel, np.float32))
            self.ranks[rank].gradient(step, launch, parts[-1])
        total = self._add(parts)
        return total / np.float32(len(members)) if self.plan.mean else total

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The parameters of all stages; replicas must hold the same."""
        found: dict[str, np.ndarray] = {}
        for each in self.ranks:
            for name, values in each.values.items():
                np.testing.assert_array_equal(values, found.setdefault(name, values.copy()))
        return found
