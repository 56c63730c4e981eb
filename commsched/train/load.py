"""A net measured under the load of a run: all ranks train it at once, each by itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net import file as net_file
from commsched.net.bucket import Piece
from commsched.net.graph import Net
from commsched.plan.model import Launch, Plan
from commsched.program.launch_ops import replica_memory
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.run.engine.memory_probe import ranks_of_this_node
from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.fabric import Middle, cores_of_host, mean_or_median
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.timeline.model import Span
from commsched.train.assignment import Assignment, Settings
from commsched.train.layers.layer import TrainableNet
from commsched.train.optimizers import RATES
from commsched.train.profile import profile_net
from commsched.train.registry import DATA
from commsched.train.training import Training, TrainOptions
from commsched.train.workers.learner import Learner
from commsched.training_log import LogRow
from commsched.units import count

WARM, STEPS = 3, 16  # least warm-up and counted steps
SECONDS = 0.5  # least s of counted steps: many times the few ms for which a thread keeps its core
LAST = 1 / 8  # share of the last steps that is not counted, as other ranks may have ended
DEFAULT = "momentum"  # optimiser, as in the plans of strategy "sync"
SOLE = "ring+dense"  # among one rank nothing is exchanged


def net_under_load(
    net: TrainableNet,
    settings: Settings,
    comm: MPI.Intracomm,
    place: Placement = ON_HOST,
    timeout: float = 60.0,
    threads: int = 1,
    seconds: float | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Net:
    """Return the net on all ranks, with the seconds of layers, optimiser and the gap between steps.

    Settings are those of a single rank: `batch` is the samples that one rank computes at once.
    All ranks train at once, each by a plan of one rank, as `commsched train` does. If a node has
    several ranks, its first rank also trains while the others sleep. `seconds`: least s of counted
    steps; None: SECONDS. `beat` is called after each step, and more often, for a watchdog.
    """
    module = place.device.module

    def settle() -> None:
        place.device.mark().wait()
        beat()

    half, fold = settings.half, settings.fold
    graph = profile_net(net, settings.batch, settings.seed, fold, half, module, settle)
    plan = _alone(graph, settings.optimizer)
    local = ranks_of_this_node(comm)
    most, cores = int(agree.largest(local.size, comm)), cores_of_host(comm)
    middle, lonely = mean_or_median(most * threads, cores), []
    enough = SECONDS if seconds is None else seconds
    training = _LonelyTraining(net, plan, settings, place, timeout, enough, beat)
    firsts = comm.Split(local.rank == 0, comm.rank)
    assert isinstance(firsts, MPI.Intracomm)
    if most > 1:
        if local.rank == 0:
            lonely = [training.measure(firsts, mean_or_median(threads, cores))[0]]
        sleeping_barrier(comm)
    own, steps = training.measure(comm, middle)
    firsts.Free()
    first = agree.gather_numbers(float(lonely[0].sum()) if lonely else 0.0, comm)
    local.Free()
    mean = agree.gather_array(own, comm).mean(axis=0)
    alone = np.mean([seconds for seconds in first if seconds]) / mean.sum() if any(first) else 1.0
    said = f"{middle.__name__}s of {steps} steps of training with {settings.optimizer}"
    said += f", means over {count(comm.size, 'rank')}"
    assert graph.measured is not None
    on = replace(
        graph.measured,
        ranks=most,
        threads=threads,
        cores=cores,
        working_set=replica_memory(plan, settings.optimizer, graph.numel).total,
        alone=min(float(alone), 1.0),
        source=f"commsched profile: {said}, each on its own, all at once",
    )
    made = _timed(replace(graph, measured=on, source=on.source), mean)
    return net_file.from_data(agree.broadcast_data(net_file.to_data(made), comm), made.name)


def _alone(graph: Net, optimizer: str) -> Plan:
    """Plan a training on one rank, in which the update follows the backward pass."""
    pieces = tuple(Piece(name, 0, tensor.numel) for name, tensor in graph.tensors.items())
    first = graph.layers[0].name
    launch = Launch(name="b0", pieces=pieces, after=first, method=SOLE, stream="inside")
    return Plan(
        net=graph,
        machine=resized(machine_file.load("localhost"), 1, 1),
        launches=(launch,),
        params={"overlap": "backward", "optimizer": optimizer},
    )


@dataclass(frozen=True)
class _LonelyTraining:
    """A training that each rank runs by itself."""

    net: TrainableNet
    plan: Plan
    settings: Settings
    place: Placement
    timeout: float
    enough: float  # least s of counted steps
    beat: Callable[[], None]  # after each step

    def measure(self, comm: MPI.Intracomm, middle: Middle) -> tuple[Floats, int]:
        """Train for long enough; return the result of `_seconds` and the counted steps."""
        steps, found = STEPS, self._seconds(STEPS, comm, middle)
        enough = math.ceil(self.enough / agree.largest(float(found.sum()), comm))
        if enough > steps:
            steps, found = enough, self._seconds(enough, comm, middle)
        return found, steps

    def _seconds(self, steps: int, comm: MPI.Intracomm, middle: Middle) -> Floats:
        """Return (2 layers + 2,) s: forward, backward, update, gap between steps.

        All ranks of `comm` wait for each other before the counted steps.
        """
        spans: list[Span] = []
        data = DATA[self.net.data](self.settings.fold)
        module = self.place.device.module
        learner = Learner(Assignment(self.net, data, self.plan, self.settings, 0, module))

        def after(row: LogRow) -> None:
            self.beat()
            if row.step == 0:
                sleeping_barrier(comm)

        options = TrainOptions(
            steps=WARM + steps + math.ceil(LAST * steps),
            evaluate=0,
            timeout=self.timeout,
            progress=after,
            taker=spans.append,
        )
        Training(learner, self.plan, MPI.COMM_SELF, None, None, options, self.place).run()
        return _seconds_of(self.plan, spans, steps, middle)


def _seconds_of(plan: Plan, spans: list[Span], steps: int, middle: Middle) -> Floats:
    """Return the seconds of each operation of the compute stream, and of the gap between steps.

    A layer lasts until the next one begins: work of the loop between layers is the rank's work.
    """
    layers = {layer.name: i for i, layer in enumerate(plan.net.layers)}
    apply = 2 * len(layers)  # its column

    def column(op: Op) -> int:
        if op.kind is Kind.APPLY:
            return apply
        assert op.turn is not None, op
        return layers[op.layer] + len(layers) * op.turn.backward

    ops = STRATEGIES[plan.strategy].lower(plan, 0, {}).role_of(0).ops
    columns = {op.name: column(op) for op in ops if op.stream == "compute"}
    seconds = np.zeros((max(span.step for span in spans) + 1, 2 * len(layers) + 2))
    begun, ended = np.full(len(seconds), np.inf), np.zeros(len(seconds))
    computed = sorted((s for s in spans if s.stream == "compute"), key=lambda span: span.start)
    for span, following in zip_longest(computed, computed[1:]):
        follows = following is not None and following.step == span.step
        end = following.start if follows and columns[following.name] < apply else span.end
        seconds[span.step, columns[span.name]] += end - span.start
        begun[span.step] = min(begun[span.step], span.start)
        ended[span.step] = max(ended[span.step], span.end)
    seconds[:-1, -1] = begun[1:] - ended[:-1]
    found: Floats = middle(seconds[WARM : WARM + steps], axis=0)
    return np.maximum(found, 0.0)


def _timed(graph: Net, seconds: Floats) -> Net:
    """Return the net with the seconds of each layer, the update and the gap between steps."""
    count = len(graph.layers)
    layers = tuple(
        replace(layer, forward=float(seconds[i]), backward=float(seconds[count + i]))
        for i, layer in enumerate(graph.layers)
    )
    update, between = seconds[-2:].tolist()
    return replace(graph, layers=layers, optimizer=update, data=between)


def settings_of_rank(
    batch: int, optimizer: str, seed: int = 0, fold: int = 0, half: bool = False
) -> Settings:
    """Return the settings of a single rank; the learning rate does not affect the seconds."""
    return Settings(
        optimizer=optimizer, rate=RATES[optimizer], batch=batch, seed=seed, fold=fold, half=half
    )
