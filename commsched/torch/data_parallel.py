"""`commsched.torch.DataParallel`: a model that measures, plans, and keeps the faster plan."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from commsched.calibrate.machine_cache import kept_machine
from commsched.calibrate.main import calibrate
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.machine import file as machine_file
from commsched.machine.model import Machine, resized
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.run.adapt.drift import explains, refit_machine
from commsched.run.adapt.plan_choice import Steps, keeps
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.job.ending import say
from commsched.timeline.model import Span
from commsched.torch.arrays import check_on_host
from commsched.torch.attach import started_by_mpi, wanted_timeline
from commsched.torch.capture import WARM_UP
from commsched.torch.captured_net import measured_net
from commsched.torch.observer import Observer
from commsched.torch.parameters import DTYPES, check_alike, check_kind, shape_of, trained
from commsched.torch.sync import Sync
from commsched.torch.trial import PlanTrial
from commsched.torch.watch import Watch
from commsched.units import seconds as in_words

DENSE = "ddp-25mb"  # the planner of the dense baseline: DistributedDataParallel's buckets
PLANNING = 20.0  # s of search
LEAST = 4  # steps to watch, for medians


class DataParallel(torch.nn.Module):  # type: ignore[misc]
    """A model whose gradients are averaged over all ranks, by the plan that proves fastest.

    It replaces `model` in a script, as DistributedDataParallel does; all ranks make it together.
    The first `steps` steps (after 3 others) exchange dense buckets as DistributedDataParallel
    does, while the seconds of layers and exchanges and the rows that embeddings hit are measured.
    The machine comes from the `machine` file (of a file for other ranks, only the links inside a
    node are used), else from the last measurement of these ranks, else from a calibration of about
    `calibration` seconds; its rates are scaled to explain the measured exchanges. Rank 0 plans for
    at most 20 s. The plan is tried for `steps` steps, rounded up to a multiple of five, in turns
    with as many steps of the dense baseline. The faster plan stays; rank 0 prints that in one line.

    Only lossless methods are planned unless `allow` names lossy codecs, such as ("fp16",). The
    other options are those of `attach`. Copies and pickles compute like the model without exchange.
    """

    def __init__(
        self,
        model: Any,
        comm: MPI.Intracomm | None = None,
        *,
        steps: int = 20,
        calibration: float = 5.0,
        machine: str | None = None,
        allow: tuple[str, ...] = (),
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        skip_overflow: bool = False,
        timeout: float = 600.0,
    ) -> None:
        super().__init__()
        self.module = model
        self._comm = started_by_mpi(comm)
        if steps < LEAST:
            raise CommschedError(f"steps must be at least {LEAST}, got {steps}")
        if not calibration > 0:
            raise CommschedError(f"calibration must be more than 0 seconds, got {calibration}")
        self._steps, self._allow, self._timeout = steps, allow, timeout
        self._calibration = calibration
        self._machine = None if machine is None else self._loaded(machine)
        self._some_unused, self._skip_overflow = find_unused_parameters, skip_overflow
        check_alike(trained(model), "trains", self._comm)
        for name, parameter in trained(model).items():
            check_kind(name, parameter)
        check_on_host(trained(model), "DataParallel")
        dense = self._planned(_unmeasured(Observer(model)), self._here(), DENSE)
        self.sync = Sync(
            model,
            self._exchanger(dense),
            self._comm,
            find_unused_parameters,
            broadcast_buffers,
            skip_overflow,
        )
        self._trial: PlanTrial | None = None
        self._exchanges = ExchangeTimes(self.sync)
        self.sync.after_step = self._after_step
        self.sync.before_means = self._before_means
        self._watch: Watch | None = Watch(model)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the model's forward pass."""
        return self.module(*inputs, **named)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: the model without the exchange."""
        return {name: self.__dict__[name] for name in torch.nn.Module().__dict__}

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside the block only add up gradients; the next backward outside exchanges the sums."""
        return self.sync.no_sync()

    def close(self) -> None:
        """End the exchange, on all ranks; without this call it ends with the script."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.sync.close()

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return self.sync.plan

    def _exchanger(self, plan: Plan, timeline: str | None = None) -> Exchanger:
        return Exchanger(
            plan,
            self._comm,
            timeline=timeline,
            timeout=self._timeout,
            skip_overflow=self._skip_overflow,
        )

    def _record(self) -> None:
        """Begin to record the timeline under the final plan, if the user wants one."""
        timeline = wanted_timeline()
        if timeline is not None:
            self.sync.restart(self._exchanger(self.plan, timeline))

    def _before_means(self) -> None:
        if self._watch is not None and self._watch.steps >= WARM_UP:
            self._watch.observer.note_rows()

    def _after_step(self) -> None:
        """Go on to the next phase if it is time, after a step's means; all ranks do so together."""
        if self._watch is not None:
            self._watch.end_of_step(keeps=self._watch.steps >= WARM_UP)
            if self._watch.steps == WARM_UP + self._steps:
                self._end_of_watch(self._watch)
        elif self._trial is not None and self._trial.after_step():
            self._decide(self._trial)

    def _end_of_watch(self, watch: Watch) -> None:
        """Measure the machine, plan, and begin to try the plan."""
        watch.close()
        self._watch = None
        what = "commsched.torch.DataParallel"
        net = measured_net(watch.observer, self._comm, "watched", watch.batch, what, True)
        net = _complete(net, watch.observer)
        here = self._exchanges.fitted(self._measured_machine(), self._comm)
        dense, found = self._planned(net, here, DENSE), self._planned(net, here, "best")
        self.sync.restart(self._exchanger(dense))
        kept = next((x.method for x in found.launches if not find_method(x.method).measurable), "")
        if kept:
            self._say(
                f"keeps the dense buckets: a change of plan would lose the unsent values of {kept},"
                " so it cannot be tried in turns; to use it, attach a plan with it"
            )
            self._record()
        elif found.launches == dense.launches:
            self._say("dense buckets of 25 MB are the best plan")
            self._record()
        else:
            self._trial = PlanTrial(self.sync, dense, found, self._steps)

    def _decide(self, trial: PlanTrial) -> None:
        """Keep the faster plan, or the dense one if both are equally fast."""
        self._trial = None
        dense, found = (
            Steps(*(agree.largest(value, self._comm) for value in steps))
            for steps in trial.measured()
        )
        kept = keeps(found, dense)
        trial.end(kept)
        self._record()
        other, one = in_words(dense.median), in_words(found.median)
        what = "keeps the plan" if kept else "keeps the dense buckets"
        self._say(
            f"{what}: {one} a step with {_methods(trial.found)}, {other} with dense buckets of"
            f" 25 MB, medians of {trial.steps} steps each"
        )

    def _say(self, text: str) -> None:
        if self._comm.rank == 0:
            say(f"DataParallel: {text}")

    def _here(self) -> Machine:
        """Return a machine with these ranks' hosts, and with unmeasured numbers."""
        nodes = agree.group_of(self._comm).nodes
        return replace(machine_file.load("localhost"), node_of_rank=nodes, overrides={})

    def _measured_machine(self) -> Machine:
        if self._machine is not None:
            return self._machine
        return kept_machine(
            self._comm,
            lambda: calibrate(self._comm, self._calibration, self._timeout),
        )

    def _loaded(self, name: str) -> Machine:
        found, ranks = (
            agree.on_all_ranks(lambda: machine_file.load(name), self._comm),
            self._comm.size,
        )
        return found if found.size == ranks else resized(found, 1, ranks)

    def _planned(self, net: Net, machine: Machine, planner: str) -> Plan:
        """Plan on rank 0, and return that plan on every rank."""

        def planned() -> Any:
            request = Request(
                net=net,
                machine=machine,
                lossy=self._allow,
                time_limit=PLANNING,
                params={"overlap": "backward"},  # `backward` returns after all means
            )
            return plan_file.to_data(make_plan(request, planner))

        made = agree.on_all_ranks(lambda: None if self._comm.rank else planned(), self._comm)
        data = agree.broadcast_data(made, self._comm)
        return plan_file.from_data(data, "the plan of rank 0")


class ExchangeTimes:
    """The seconds of a plan's exchanges in real steps, on this rank."""

    def __init__(self, sync: Sync) -> None:
        self._plan = sync.plan
        self._names = {f"{launch.name}/exchange": i for i, launch in enumerate(self._plan.launches)}
        self.seconds: list[list[float]] = [[] for _ in self._plan.launches]
        sync.listen(self._take)

    def _take(self, span: Span) -> None:
        if span.name in self._names:
            self.seconds[self._names[span.name]].append(span.end - span.start)

    def fitted(self, machine: Machine, comm: MPI.Intracomm) -> Machine:
        """Return the machine with rates that explain the measured exchanges; unchanged if none do.

        The shortest median over the ranks is the time of an exchange without waiting.
        """
        seconds = np.array([np.median(each) if each else 0.0 for each in self.seconds])
        comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MIN)
        if not seconds.all():  # a single rank exchanges nothing
            return machine
        plan = replace(self._plan, machine=machine)
        fitted, _ = refit_machine(plan, seconds, [])
        return fitted if explains(plan, fitted, seconds) else machine


def _unmeasured(observer: Observer) -> Net:
    """Return the net of a model, unmeasured."""
    layers, before = [], ()
    for name, owned in observer.owners.items():
        tensors = tuple(_tensor(observer, key) for key in owned)
        layers.append(Layer(name=name, after=before, forward=1e-3, backward=2e-3, tensors=tensors))
        before = (name,)  # type: ignore[assignment]
    return Net(name="unmeasured", layers=tuple(layers))


def _tensor(observer: Observer, name: str) -> Tensor:
    parameter = observer.parameters[name]
    return Tensor(name=name, shape=shape_of(parameter), dtype=DTYPES[parameter.dtype])


def _complete(net: Net, observer: Observer) -> Net:
    """Add parameters without a gradient so far in a first layer, the last one in backward."""
    missing = [name for name in observer.parameters if name not in net.tensors]
    if not missing:
        return net
    tensors = tuple(_tensor(observer, name) for name in missing)
    unused = Layer(name="unused", forward=0.0, backward=0.0, tensors=tensors)
    first, *rest = net.layers
    return replace(net, layers=(unused, replace(first, after=("unused",)), *rest))


def _methods(plan: Plan) -> str:
    names = dict.fromkeys(launch.method for launch in plan.launches)
    count = len(plan.launches)
    return f"{count} bucket{'s' if count > 1 else ''} by {', '.join(names)}"
