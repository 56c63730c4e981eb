"""The exchange of one model's gradients, by hooks of the model and its optimizer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.plan.model import Plan
from commsched.program.read_plan import AnyPlan
from commsched.program.registry import STRATEGIES
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.timeline.model import Span
from commsched.torch.hooks import Hook
from commsched.torch.late_updates import LateUpdates
from commsched.torch.parameters import (
    buffers_now,
    check_alike,
    check_attached,
    check_fits,
    handed_over,
    named_buffers,
    named_tensors,
    no_gradient,
    put_mean,
    sparse_embeddings,
    trained,
    unplanned,
    why_second,
)
from commsched.torch.script_end import ScriptEnd
from commsched.torch.states import as_arrays, as_tensors, broadcast
from commsched.torch.unfilled_buckets import UnfilledBuckets
from commsched.torch.watch import Watch


class Sync:
    """The exchange of one model's gradients; `attach` makes it.

    It ends with the script, with `close()` on all ranks, or with a with block. An exception that
    the script does not catch ends the whole job.
    """

    def __init__(
        self,
        model: Any,
        exchanger: Exchanger,
        comm: MPI.Intracomm,
        some_unused: bool,
        broadcast_buffers: bool,
        skip_overflow: bool,
    ) -> None:
        self._some_unused, self._skip_overflow = some_unused, skip_overflow
        self._parameters = trained(model)
        plan = exchanger.plan
        agree.on_all_ranks(lambda: check_fits(self._parameters, plan, some_unused), comm)
        everything = agree.on_all_ranks(lambda: named_tensors(model), comm)
        check_alike(everything, "has", comm)
        self._unplanned = set(self._parameters) - set(plan.net.tensors)
        self._planned = {n: self._parameters[n] for n in plan.net.tensors}
        self._parameters = {n: self._parameters[n] for n in exchanger.names}
        self._mine = {id(parameter) for parameter in self._planned.values()}
        sparse = {id(parameter) for parameter in sparse_embeddings(model)}
        self._rows = {n for n, p in self._parameters.items() if id(p) in sparse}
        self._exchanger = exchanger
        self._comm = comm.Dup()
        exchanger.__enter__()
        self._team: MPI.Comm = self._comm  # the ranks whose gradients are averaged
        self._averages = STRATEGIES[plan.strategy].averages  # parameters, after the update
        if self._averages:
            node = plan.machine.node_of_rank[comm.rank] if exchanger.names else comm.rank
            self._team = self._comm.Split(node)
        self._under_way = False  # the step's update is not done
        self._updated: set[int] = set()  # parameters that optimizers have updated in this step
        self._loss: float | None = None
        self._model = model
        with torch.no_grad():
            broadcast(everything.values(), self._comm)
        self._buffers = named_buffers(model) if broadcast_buffers else {}
        self._taken: set[str] = set()
        self._unfilled = UnfilledBuckets(self._rows)
        self._keeping: set[str] = set()  # tensors for which a codec may have a remainder
        self._keeping_plan: Plan | None = None  # last plan that `_keeping` includes
        self.after_step: Callable[[], None] = lambda: None  # called on all ranks after each step
        self.before_means: Callable[[], None] = lambda: None  # while `.grad` is this rank's
        self._syncing, self._forwarded = True, False
        self._unread = False  # there are means that the optimizer has not used
        self._late: LateUpdates | None = None
        self._used: dict[str, bool] = {}  # parameter -> whether any rank has a gradient
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(Hook(self._hook(name)))
            for name, parameter in trained(model).items()
        ]
        self._attached = {id(parameter) for parameter in trained(model).values()}
        self._hooks.append(model.register_forward_pre_hook(Hook(self._before_forward)))
        self._hooks.append(register_optimizer_step_pre_hook(self._before_step))
        if self._averages:
            self._hooks.append(register_optimizer_step_post_hook(self._after_update))
        self._watch = Watch(model, exchanger) if exchanger.timeline else None
        self._end = ScriptEnd(exchanger, self.close)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside the block only add up gradients; the next backward outside exchanges the sums."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def _hook(self, name: str) -> Callable[[Any], None]:
        if name in self._unplanned:
            return lambda _: self._refuse_unplanned(name)
        if not self._parameters:
            return lambda _: self._begin_update() if self._syncing else None
        return lambda parameter: self._take(name, parameter) if self._syncing else None

    def _refuse_unplanned(self, name: str) -> None:
        raise unplanned(name, f"rank {self._comm.rank}: ")

    def update_in_forward(self, optimizer: Any) -> None:
        """Update parameters under the next forward pass from now on; see `attach`."""
        if self._averages or self._skip_overflow:
            what = "skip_overflow" if self._skip_overflow else f"plans of {self.plan.strategy!r}"
            raise CommschedError(f"update_in_forward does not go with {what}")
        check = partial(self._before_step, optimizer)
        late = LateUpdates(self._model, optimizer, self._parameters, self._take_mean, check)
        if self._watch is not None:
            late.around = self._paused
        self._late = late

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Leave updates during a forward pass out of the forward spans."""
        assert self._watch is not None
        with self._watch.observer.paused():
            yield
            self._exchanger.turn()

    def _take_mean(self, name: str) -> None:
        """Wait for one mean, and put it into `.grad`."""
        mean = self._exchanger.wait(name)
        if self._used.get(name, True) or self._was_unsent(name, mean):
            put_mean(self._parameters[name], mean, overflow=False)

    def _take(self, name: str, parameter: Any) -> None:
        """Hand over a gradient; after the last one, wait at the end of this backward pass."""
        taken = self._taken
        if not taken:
            self._begin_step()
        if name in taken:
            why = why_second(self._missing(), self._some_unused)
            raise CommschedError(f"rank {self._comm.rank}: parameter {name!r} got a second {why}")
        if self._late is not None:
            self._late.check(name)
        may_wait = self._unfilled.add(name, parameter) and self._watch is None
        if not taken:
            self._unfilled.begin(self._exchanger)
        if self._unfilled.fills(name) or not may_wait:
            self._unfilled.hand_over(self._exchanger)
        taken.add(name)
        if len(taken) == (1 if self._some_unused else len(self._parameters)):
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _begin_step(self) -> None:
        """Finish the previous step, and begin the next one."""
        if self._keeping_plan is not self.plan:  # remainders of earlier plans arrive, too
            self._keeping_plan = self.plan
            mine = [x for x in self.plan.launches if find_method(x.method).keeps]
            self._keeping.update(piece.tensor for launch in mine for piece in launch.pieces)
        if self._late is not None:
            self._late.flush()
        if self._under_way:
            self._end_update()  # no update followed the previous backward pass
        self._begin_update()

    def _missing(self) -> list[str]:
        return [name for name in self._parameters if name not in self._taken]

    def _finish(self) -> None:
        """Put the means into `.grad`; first hand over zeros for parameters without a gradient."""
        exchanger = self._exchanger
        self._unfilled.hand_over(exchanger)
        self.before_means()
        for name in self._missing():
            parameter = self._parameters[name]
            if parameter.grad is None:
                exchanger.ready(name, no_gradient(parameter, name in self._rows), lent=True)
            else:
                exchanger.ready(name, handed_over(name, parameter.grad), lent=True)
        self._taken.clear()
        self._forwarded, self._unread = False, True
        used = np.array([p.grad is not None for p in self._parameters.values()])
        overflow = False
        if self._late is not None:
            if self._some_unused:
                self._team.Allreduce(MPI.IN_PLACE, used, op=MPI.LOR)
            self._used = dict(zip(self._parameters, used.tolist(), strict=True))
            self._late.begin()
            self._end_of_step()
            return
        mean_of: Callable[[str], Any] = exchanger.wait
        if self._some_unused or self._skip_overflow:
            mean_of = {name: exchanger.wait(name) for name in self._parameters}.__getitem__
            flags = np.append(used, exchanger.overflowed).astype(np.uint8)
            self._team.Allreduce(MPI.IN_PLACE, flags, op=MPI.MAX)
            used, overflow = flags[:-1].astype(bool), bool(flags[-1])
            self._unread = not overflow  # after an overflow a GradScaler skips the step
        with torch.no_grad():
            for (name, parameter), anywhere in zip(self._parameters.items(), used, strict=True):
                mean = mean_of(name)
                if anywhere or self._was_unsent(name, mean):
                    put_mean(parameter, mean, overflow)
        self._end_of_step()

    def _was_unsent(self, name: str, mean: Any) -> bool:
        """Tell whether the mean of a tensor that no rank used comes from a codec's remainder."""
        values = mean[1] if isinstance(mean, tuple) else mean  # (rows, values), or an array
        return name in self._keeping and bool(values.any())

    def _end_of_step(self) -> None:
        if self._watch is not None:
            self._watch.end_of_step()
        self.after_step()

    def _begin_update(self) -> None:
        """Expect the optimizer's update, if the plan averages parameters."""
        self._under_way = self._averages

    def _after_update(self, optimizer: Any, *_: object) -> None:
        """End a step once every parameter that has a gradient is updated."""
        self._updated.update(id(p) for group in optimizer.param_groups for p in group["params"])
        with_gradient = {id(p) for p in self._planned.values() if p.grad is not None}
        if self._under_way and with_gradient <= self._updated:
            self._end_update()

    def _end_update(self) -> None:
        """Merge the parameters of other ranks, as the plan says."""
        self._under_way, loss, self._loss = False, self._loss, None
        self._updated.clear()
        self._exchanger.updated(loss)
        if not self._parameters:
            self._forwarded = False
            self._end_of_step()

    def report(self, loss: float) -> None:
        """Report the loss of this rank's batch before the optimizer's step, for plans of `daso`."""
        self._loss = float(loss)

    def _before_forward(self, model: Any, _: object) -> None:
        """Take the buffers of rank 0, as DistributedDataParallel does."""
        if not (self._syncing and torch.is_grad_enabled()):
            return
        if model.training and self._under_way and self._skip_overflow:
            self._end_update()  # a GradScaler skipped the step
        self._forwarded = not self._means_wait()
        if model.training and self._buffers:
            buffers = buffers_now(model, self._buffers)
            with torch.no_grad(), ExitStack() as versions:
                for buffer in buffers:  # BatchNorm's backward pass does not read buffers
                    versions.enter_context(torch.autograd._unsafe_preserve_version_counter(buffer))
                broadcast(buffers, self._team)

    def _means_wait(self) -> bool:
        """Tell whether the optimizer must still read means: until then no step begins."""
        kept = self._late is not None or any(p.grad is not None for p in self._parameters.values())
        return self._unread and kept

    def _before_step(self, optimizer: Any, *_: object) -> None:
        """Raise an error if means are missing; hand over zeros if this rank used no parameter."""
        updates = [p for group in optimizer.param_groups for p in group["params"]]
        mine = any(id(p) in self._mine for p in updates)
        if mine and (self._taken or self._forwarded):
            if self._parameters:
                self._check_all_there()
            elif not self._under_way:  # plans without gradients: begin the step here
                self._begin_update()
        self._unread &= not mine
        check_attached(self._model, updates, self._attached, self._comm.rank)

    def _check_all_there(self) -> None:
        """Raise an error if means are missing; hand over zeros if this rank used no parameter."""
        if not (self._taken or self._forwarded):
            return
        if not self._some_unused:
            raise CommschedError(
                f"rank {self._comm.rank}: parameter {self._missing()[0]!r} "
                + self._why_missing(self._missing()[0])
            )
        if not self._taken:
            self._begin_step()
        self._finish()

    def _why_missing(self, name: str) -> str:
        """Explain why a parameter may have got no gradient."""
        if trained(self._model).get(name) is not self._planned[name]:
            return "was replaced, removed or frozen since attach; attach to the model as it is now"
        return (
            "got no gradient in this step; freeze it by requires_grad_(False), or attach with"
            " find_unused_parameters=True"
        )

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return self._exchanger.plan

    def follow(self, plan: AnyPlan, why: str) -> None:
        """Follow another plan of the same net from the next step on; all ranks call it together."""
        self._exchanger.follow(plan, why)
        self._parameters = {n: self._parameters[n] for n in self._exchanger.names}

    def listen(self, take: Callable[[Span], None]) -> None:
        """Call `take` with every span of the exchange until the next `restart`, in any thread."""
        self._exchanger.listen(take)

    def restart(self, exchanger: Exchanger) -> None:
        """Continue with another Exchanger, and with the old one's state if the plan is equal."""
        kept = self._exchanger.kept() | {"step": 0}
        same = self._exchanger.plan.hash == exchanger.plan.hash
        self._exchanger.__exit__(None, None, None)
        self._end.forget()
        self._exchanger = exchanger
        self._parameters = {n: self._parameters[n] for n in exchanger.names}
        exchanger.__enter__()
        if same:
            exchanger.restore(kept)
        self._watch = Watch(self._model, exchanger) if exchanger.timeline else None
        self._end = ScriptEnd(exchanger, self.close)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's feedback and warm starts between two steps; each rank saves its own.

        torch.save writes it and torch.load reads it with weights_only.
        """
        if self._under_way:
            self._end_update()
        if self._late is not None:
            self._late.flush()
        kept: dict[str, Any] = as_tensors(self._exchanger.kept())
        return kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with equal bits from a `state_dict` of this rank; all ranks call it."""
        self._exchanger.restore(as_arrays(dict(state)))

    def close(self) -> None:
        """End the exchange, on all ranks; gradients then stay as each rank computes them."""
        if self._under_way and self._skip_overflow:
            self._end_update()  # a GradScaler skipped the last step; other ranks wait for this rank
        if self._detach():
            self._exchanger.__exit__(None, None, None)
            if self._team is not self._comm:
                self._team.Free()
            self._comm.Free()

    def _detach(self) -> bool:
        """Remove the hooks; return False if they were removed already."""
        if self._late is not None:
            self._late.close()
            self._late = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        return self._end.forget()

    def __enter__(self) -> "Sync":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is None:
            self.close()
        elif self._detach():
            self._exchanger.__exit__(kind, error, error.__traceback__)
