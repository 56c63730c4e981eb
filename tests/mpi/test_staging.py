"""Buckets on a device go through MPI in chunks, or by its pointers, to the same bits and bytes."""

import numpy as np
import pytest

from commsched.exchange.endpoint import open_endpoint
from commsched.exchange.lockstep import fresh_states
from commsched.exchange.memory import AHEAD
from commsched.exchange.method import Choice
from commsched.exchange.pair import Pair
from commsched.exchange.registry import METHODS, legal_methods
from commsched.kernels.modules import beside, on_host
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree
from commsched.run.wire.host import PlainPath
from commsched.run.wire.path import Repeated
from commsched.run.wire.staging import SLOTS, Pointers, StagedPath
from tests.support import strict_arrays
from tests.support.exam import Case, Taken, inputs, shared_out
from tests.support.gradients import gradients, group, spec
from tests.support.late_device import Late
from tests.support.ranks import WORLD, together

NODES = max(2, WORLD.size // 2) if WORLD.size % 2 == 0 else 1
GROUP = group(NODES, WORLD.size // NODES)
BASIC = ("dense", "fp16", "coo")  # a codec of each kind: as it is, rounding, of unknown length
EVERY_PAIR = [m for m in legal_methods(GROUP) if isinstance(m, Pair)]
SOME = [pair for pair in EVERY_PAIR if pair.codec.name in (*BASIC, "quant:8", "topk:0.01")]
SEVERAL = [
    m
    for m in METHODS.values()
    if type(m).__module__.startswith("commsched.")  # not those of other tests
]
NATIVE = [pair for pair in EVERY_PAIR if pair.collective == "native"]
MIXED = PlainPath(64, persistent=False), StagedPath(Late(), 64)  # ranks without a device and with
EXACT = [pair for pair in SOME if pair.collective != "native"]


def over_mpi(method, numel, state, path):
    """Run a step on all ranks: bytes that this rank sends."""
    sent = 0
    for phase in method.phases(spec(numel), GROUP):
        if isinstance(phase, Choice):
            phase = phase.then(phase.agreed(agree.gather_numbers(phase.vote(state), WORLD)))
        held = open_endpoint(phase, state)
        exchange = begin(phase.schedule, held, WORLD, 7, path)
        complete(exchange)
        phase.give(state, held.result())
        sent += exchange.sent
    return sent


def taken(case, path):
    """What this rank finds in a case, and the bytes that it sends."""
    found, state = Taken([], []), {}
    for step, _, grads in inputs(case.series, WORLD.size):
        if step == 0:
            state = fresh_states([np.zeros_like(each) for each in grads], 5, "b0")[WORLD.rank]
            state["gradient"] = path_module(path).asarray(state["gradient"])
        state["gradient"][:] = beside(grads[WORLD.rank], state["gradient"])
        state["step"] = step
        found.sent.append(over_mpi(case.method, len(grads[0]), state, path))
        found.results.append(on_host(state["result"]).copy())
    return found


def differences(methods, sizes, path):
    """What is wrong with this rank's share of the methods, a sentence each."""
    series = tuple((numel, ("rounded", "mixed", "empty")) for numel in sizes)
    some = [Case(method.name, method, series) for method in methods]
    found = shared_out(some, [taken(case, path) for case in some], GROUP, WORLD)
    return [f"{name}, {problem}" for name, wrong in found.items() for problem in wrong]


def path_module(path):
    return np if isinstance(path, PlainPath) else path.device.module


pytestmark = pytest.mark.groups(1, 3)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("cut", [64, 1 << 20])
def test_staged_exchanges_give_the_bits_and_bytes_of_lockstep(cut):
    path = StagedPath(Late(), cut)
    sizes = (5, 301) if cut == 64 else (301,)
    found = differences(EXACT, sizes, path)
    together([*found, "" if WORLD.size == 1 or path.device.begun else "nothing was copied"])


def test_staged_methods_of_several_phases_give_the_bits_and_bytes_of_lockstep():
    path = StagedPath(Late(), 64)
    together(differences(SEVERAL, (103,), path))


def test_messages_that_end_at_a_cut_are_followed_by_an_empty_one():
    names = {"ring+dense", "direct+fp16", "all-gather+coo", "tree+coo"}
    pairs = [pair for pair in SOME if pair.name in names]
    assert len(pairs) == len(names)
    together(differences(pairs, (32 * WORLD.size, 16 * WORLD.size), StagedPath(Late(), 64)))


def test_pointers_wait_until_the_device_has_written_what_is_sent():
    path = Pointers(Late(np), 64)
    together(differences(EXACT, (301,), path))


@pytest.mark.by_day(1)
def test_ranks_with_and_without_a_device_sum_with_each_other():
    paths = (
        PlainPath(64),
        StagedPath(Late(), 64),
        Pointers(Late(np), 64),
        StagedPath(Late(np), 64),
    )
    path = paths[WORLD.rank % len(paths)]
    together(differences([*EXACT, *SEVERAL], (301,), path))


class Ticking(Late):
    """Its clock goes on by a second at every mark; moments are known once somebody has waited."""

    def __init__(self):
        super().__init__()
        self.marks = self.reached = 0

    def mark(self):
        self.marks += 1
        return Tick(self, self.marks)


class Tick:
    def __init__(self, device, number):
        self._device, self._number = device, number

    def wait(self):
        self._device.reached = max(self._device.reached, self._number)

    def when(self):
        assert self._number <= self._device.reached, "nobody has waited for it"
        return float(self._number)


def test_coding_within_an_exchange_is_timed_where_it_is_done():
    (ring,) = (pair for pair in EXACT if pair.name == "ring+fp16")
    state = fresh_states([np.zeros(301, np.float32)] * WORLD.size, 5, "b0")[WORLD.rank]
    state["gradient"] = strict_arrays.asarray(state["gradient"])
    (phase,) = ring.phases(spec(301), GROUP)
    exchange = begin(
        phase.schedule, open_endpoint(phase, state), WORLD, 7, StagedPath(Ticking(), 64)
    )
    complete(exchange)
    messages = 2 * 2 * (WORLD.size - 1)  # taken and sent, received and merged, in both halves
    together(["" if exchange.coded == messages else f"{exchange.coded} instead of {messages} s"])


@pytest.mark.parametrize("numel", [1, 64, 301])
def test_the_sum_of_the_mpi_itself_goes_through_host_memory(numel):
    found = []
    for path in (
        StagedPath(Late(), 64),
        Pointers(Late(), 64),
        MIXED,
    ):
        chosen = path[WORLD.rank % 2] if isinstance(path, tuple) else path
        grads = gradients("alone", WORLD.size, numel)  # whole numbers
        state = fresh_states([g.copy() for g in grads])[WORLD.rank]
        state["gradient"] = path_module(chosen).asarray(state["gradient"])
        for pair in NATIVE:
            over_mpi(pair, numel, state, chosen)
        if not np.array_equal(on_host(state["result"]), np.sum(grads, axis=0)):
            found.append(f"{numel} elements: not the sum")
    together(found)


def test_native_sums_of_ranks_with_and_without_a_device_match_in_every_step():
    path, found = MIXED[WORLD.rank % 2], []
    grads = gradients("alone", WORLD.size, 301)  # whole numbers
    (phase,) = NATIVE[0].phases(spec(301), GROUP)
    state = fresh_states([g.copy() for g in grads])[WORLD.rank]
    state["gradient"] = path_module(path).asarray(state["gradient"])
    held = open_endpoint(phase, state)
    exchange = begin(phase.schedule, held, WORLD, 7, path)
    for times in range(3):
        complete(exchange)
        if not np.array_equal(on_host(held.take(0, 1)), WORLD.size**times * sum(grads)):
            found.append(f"step {times}: not the sum")
        if isinstance(exchange, Repeated):
            exchange.start()
        else:
            exchange = begin(phase.schedule, held, WORLD, 7, path)
    complete(exchange)
    together(found)


def test_memory_of_the_host_is_used_again():
    device, given = Late(), []
    host = device.host
    device.host = lambda nbytes: given.append(nbytes) or host(nbytes)
    path = StagedPath(device, 4096)
    pair = next(pair for pair in EXACT if pair.name == "ring+dense")
    for _ in range(5):
        state = fresh_states([np.ones(40_000, np.float32)] * WORLD.size)[WORLD.rank]
        state["gradient"] = strict_arrays.asarray(state["gradient"])
        over_mpi(pair, 40_000, state, path)
    few = len(given) <= SLOTS * (AHEAD + 2) and (WORLD.size == 1 or device.begun > 100)
    texts = agree.gather_text(f"{len(given)} for {device.begun} copies: {few}", WORLD)
    assert all(text.endswith("True") for text in texts), texts
