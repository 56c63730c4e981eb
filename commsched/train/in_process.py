"""All ranks of a training in one process, without MPI: bits and sent bytes equal a real run's."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np

from commsched.errors import CommschedError
from commsched.exchange.lockstep import exchange
from commsched.exchange.registry import find_method
from commsched.plan.model import Plan
from commsched.program.model import CODINGS, Kind, Op, Program
from commsched.program.placer import EXCHANGES, StreamQueue, serve
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.run.engine.buckets import Buckets
from commsched.run.engine.coded_mail import CodedMail
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.recorder import Recorder
from commsched.run.wire.device import HOST
from commsched.train.assignment import Assignment, Settings
from commsched.train.forward_backward import Score, added
from commsched.train.layers.layer import TrainableNet
from commsched.train.neighbours import InProcessNeighbours
from commsched.train.sample_order import check_batch
from commsched.train.samples import Data
from commsched.train.workers.learner import Learner
from commsched.train.workers.trainee import Trainee

Key = tuple[int, int, str]  # rank, step, operation


class InProcessTraining:
    """The learners of all ranks, which perform a step's operations in any order that inputs allow.

    An exchange happens once all of its ranks have reached it; a message arrives when it is sent.
    """

    def __init__(
        self,
        net: TrainableNet,
        data: Data,
        plan: Plan,
        settings: Settings,
        worker: Callable[[Assignment], Trainee] = Learner,
    ) -> None:
        self._plan, self._ranks = plan, range(plan.machine.size)
        self._strategy = STRATEGIES[plan.strategy]
        check_together(plan)
        parts = 1 if isinstance(self._strategy, PipelineStrategy) else len(self._ranks)
        check_batch(settings.batch, len(data.train), parts)
        self.learners = [worker(Assignment(net, data, plan, settings, r)) for r in self._ranks]
        self._buckets = [
            Buckets(plan, r, self.learners[r].roles, DeviceQueue(HOST, Recorder(r)))
            for r in self._ranks
        ]
        self._mails: dict[int, CodedMail] = {}
        self._done: set[Key] = set()
        self._overflow: dict[int, bool] = {}
        self._reports: dict[int, int] = {}  # step -> ranks that have reported its overflow
        flushes = isinstance(self._strategy, PipelineStrategy) and self._strategy.flushes
        self._agree = flushes and settings.half and not self._strategy.decides
        self.sent = 0  # B sent by all ranks so far
        for learner in self.learners:
            learner.report = self._report
            learner.overflowed = self._overflow.__getitem__

    def _report(self, step: int, score: Score, overflow: bool) -> None:
        self._overflow[step] = self._overflow.get(step, False) or overflow
        self._reports[step] = self._reports.get(step, 0) + 1

    def step(self, step: int) -> None:
        """Do all operations of a step on all ranks."""
        program = self._strategy.lower(self._plan, step, self._buckets[0].decisions)
        queues: dict[tuple[int, str], StreamQueue] = defaultdict(StreamQueue)
        for rank in self._ranks:
            for op in program.role_of(rank).ops:
                if op.kind is not Kind.RECV:
                    queues[rank, op.stream].append((step, op))
        self._done = {key for key in self._done if key[1] >= step - program.reach}
        serve(queues, self._members, self._ready, partial(self._perform, program))

    def _perform(
        self, program: Program, step: int, ranks: Sequence[int], ops: Sequence[Op]
    ) -> None:
        """Do one operation of one or several ranks."""
        if ops[0].kind in EXCHANGES:
            self._exchange(step, ranks, ops)
        elif ops[0].kind is Kind.SEND:
            self._send(ranks[0], program, ops[0])
        elif ops[0].kind in CODINGS:
            self._buckets[ranks[0]].perform(step, ops[0])
        else:
            self.learners[ranks[0]].perform(step, ops[0])
        self._done.update((rank, step, op.name) for rank, op in zip(ranks, ops, strict=True))

    def _ready(self, rank: int, step: int, op: Op) -> bool:
        """Tell whether the inputs of an operation are complete; those before the first step are.

        Stages update once all have reported whether their 16-bit gradients overflowed.
        """
        if self._agree and op.kind is Kind.APPLY and self._reports.get(step, 0) < len(self._ranks):
            return False
        return all(b > step or (rank, step - b, name) in self._done for name, b in op.after)

    def _members(self, rank: int, step: int, op: Op) -> Sequence[int]:
        """Return the ranks that do an operation together with this one."""
        if op.kind not in EXCHANGES:
            return [rank]
        if op.launch < 0:
            return self._ranks
        group = self._plan.group_of(self._plan.launches[op.launch], rank)
        assert group is not None, op.name
        return group.ranks

    def _exchange(self, step: int, members: Sequence[int], ops: Sequence[Op]) -> None:
        """Exchange among all members, whose operations differ only in their inputs."""
        pairs = list(zip(members, ops, strict=True))
        ready = [self._buckets[rank].exchange(step, op) for rank, op in pairs]
        self.sent += exchange(ready[0].phase.schedule, [each.held for each in ready])
        for rank, op in pairs:
            if op.kind is Kind.DECIDE:
                self._buckets[rank].decide(step, op)

    def _send(self, rank: int, program: Program, op: Op) -> None:
        """Pass a message to its receiver."""
        there = program.roles[op.peer]
        to = there.ranks[program.role_of(rank).ranks.index(rank)]
        arrival = next(other for other in there.ops if other.name == op.match)
        packet = self._mail(rank).outgoing(program.step, op).copy()
        self.sent += packet.nbytes
        self._mail(to).incoming(program.step, arrival, packet)
        self._done.add((to, program.step, arrival.name))

    def _mail(self, rank: int) -> CodedMail:
        if rank not in self._mails:
            mail = self.learners[rank].mail
            assert mail is not None
            self._mails[rank] = CodedMail(mail, self._plan, rank)
        return self._mails[rank]

    def evaluate(self, counts: bool = True) -> Score:
        """Score the held-out samples, each rank its part, after all results are applied.

        counts: the schedule of the rate observes the loss.
        """
        for learner in self.learners:
            learner.settle()
        # Stages come in the order of their ranks.
        ends = InProcessNeighbours.all(len(self._ranks))
        evaluations = [each.evaluate(end) for each, end in zip(self.learners, ends, strict=True)]
        rounds = zip_longest(*evaluations, fillvalue=Score(0.0, 0, 0))
        scores = [added(some) for some in zip(*rounds, strict=True)]
        parts = np.array(scores, np.float64)
        loss, correct, guesses = (sum(column) for column in parts.T.tolist())
        for learner in self.learners if counts else ():
            learner.rates.observe(loss / guesses)
        return Score(loss, int(correct), int(guesses))


def check_together(plan: Plan) -> None:
    """Reject plans that need MPI's own sums."""
    for launch in plan.launches:
        if find_method(launch.method).library:
            raise CommschedError(
                f"launch {launch.name!r} has method {launch.method!r}, whose sum is the MPI's own;"
                " one process has none: use 'ring+dense', or mpiexec"
            )
