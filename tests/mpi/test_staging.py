"""Buckets on a device go through MPI in chunks, or by its pointers, to the same bits and bytes."""

import numpy as np
import pytest
from mpi4py import MPI

from commsched.kernels.modules import beside, on_host
from commsched.methods import METHODS, Choice, Direct, hold, legal_methods
from commsched.methods.lockstep import AGREE, fresh_states
from commsched.run import agree
from commsched.run.pacer import complete
from commsched.run.staging import SLOTS, Pointers, Staged
from commsched.run.transfer import AHEAD, Plain, begin
from tests import strict
from tests.exam import inputs, reference
from tests.late import Late
from tests.ranks import together
from tests.supports import bits, gradients, group, spec

WORLD = MPI.COMM_WORLD
NODES = max(2, WORLD.size // 2) if WORLD.size % 2 == 0 else 1
GROUP = group(NODES, WORLD.size // NODES)
BASIC = ("dense", "fp16", "coo")  # a codec of each kind: as it is, rounding, of unknown length
EVERY_PAIR = [m for m in legal_methods(GROUP) if isinstance(m, Direct)]
SOME = [pair for pair in EVERY_PAIR if pair.codec.name in (*BASIC, "quant:8", "topk:0.01")]
SEVERAL = [
    m
    for m in METHODS.values()
    if type(m).__module__.startswith("commsched.")  # not those of other tests
]
NATIVE = [pair for pair in EVERY_PAIR if pair.collective == "native"]
EXACT = [pair for pair in SOME if pair.collective != "native"]


def over_mpi(method, numel, state, path):
    """Run a step on all ranks: bytes that this rank sends."""
    sent = 0
    for phase in method.phases(spec(numel), GROUP):
        if isinstance(phase, Choice):
            phase = phase.then(float(AGREE[phase.agree](agree.each(phase.vote(state), WORLD))))
        held = hold(phase, state)
        exchange = begin(phase.schedule, held, WORLD, 7, path)
        complete(exchange)
        phase.give(state, held.result())
        sent += exchange.sent
    return sent


def difference(method, inputs, path, near=0.0):
    """What is wrong on this rank after some steps, a sentence or nothing.

    With `near`, of a method whose products round as the device does: a sum that is further off
    than that share of it, or ranks that have other bits than each other.
    """
    numel = len(inputs[0][0])
    fresh = lambda: np.zeros(numel, np.float32)  # noqa: E731
    states = fresh_states([fresh() for _ in range(WORLD.size)], 5, "b0")
    own = fresh_states([fresh() for _ in range(WORLD.size)], 5, "b0")[WORLD.rank]
    own["gradient"] = path_module(path).asarray(own["gradient"])
    for step, grads in enumerate(inputs):
        for state, gradient in zip([*states, own], [*grads, grads[WORLD.rank]], strict=True):
            state["gradient"][:] = beside(gradient, state["gradient"])
            state["step"] = step
        sent = over_mpi(method, numel, own, path)
        wanted = reference(method, GROUP, states)[WORLD.rank]
        where = f"{method.name}, {numel} elements, step {step}"
        if sent != wanted:
            return f"{where}: {sent} B were sent instead of {wanted}"
        found = on_host(own["result"])
        exact = states[WORLD.rank]["result"]
        if near:
            alike = len(set(agree.gather_text(found.tobytes().hex(), WORLD))) == 1
            if not alike or np.linalg.norm(found - exact) > near * np.linalg.norm(exact):
                return f"{where}: {'another sum' if alike else 'other bits on other ranks'}"
        elif not np.array_equal(bits(found), bits(exact)):
            return f"{where}: other bits than in one process"
    return ""


def path_module(path):
    return np if isinstance(path, Plain) else path.device.module


def inputs_of(numel):
    series = ((numel, ("rounded", "mixed", "empty")),)
    return [grads for _, _, grads in inputs(series, WORLD.size)]


@pytest.mark.parametrize("cut", [64, 1 << 20])
def test_staged_exchanges_give_the_bits_and_bytes_of_lockstep(cut):
    path = Staged(Late(), cut)
    sizes = (5, 301) if cut == 64 else (301,)
    found = [difference(pair, inputs_of(numel), path) for pair in EXACT for numel in sizes]
    together([*found, "" if WORLD.size == 1 or path.device.begun else "nothing was copied"])


def test_staged_methods_of_several_phases_give_the_bits_and_bytes_of_lockstep():
    path = Staged(Late(), 64)
    together([difference(method, inputs_of(103), path) for method in SEVERAL])


def test_messages_that_end_at_a_cut_are_followed_by_an_empty_one():
    names = {"ring+dense", "direct+fp16", "all-gather+coo", "tree+coo"}
    pairs = [pair for pair in SOME if pair.name in names]
    assert len(pairs) == len(names)
    found = []
    for numel in (32 * WORLD.size, 16 * WORLD.size):
        found += [difference(pair, inputs_of(numel), Staged(Late(), 64)) for pair in pairs]
    together(found)


def test_pointers_wait_until_the_device_has_written_what_is_sent():
    path = Pointers(Late(np), 64)
    together([difference(pair, inputs_of(301), path) for pair in EXACT])


def test_ranks_with_and_without_a_device_sum_with_each_other():
    paths = (Plain(64), Staged(Late(), 64), Pointers(Late(np), 64), Staged(Late(np), 64))
    path = paths[WORLD.rank % len(paths)]
    together([difference(each, inputs_of(301), path) for each in [*EXACT, *SEVERAL]])


@pytest.mark.parametrize("numel", [1, 64, 301])
def test_the_sum_of_the_mpi_itself_goes_through_host_memory(numel):
    found = []
    for path in (Staged(Late(), 64), Pointers(Late(), 64), (Plain(64), Staged(Late(), 64))):
        chosen = path[WORLD.rank % 2] if isinstance(path, tuple) else path
        grads = gradients("alone", WORLD.size, numel)  # whole numbers
        state = fresh_states([g.copy() for g in grads])[WORLD.rank]
        state["gradient"] = path_module(chosen).asarray(state["gradient"])
        for pair in NATIVE:
            over_mpi(pair, numel, state, chosen)
        if not np.array_equal(on_host(state["result"]), np.sum(grads, axis=0)):
            found.append(f"{numel} elements: not the sum")
    together(found)


def test_memory_of_the_host_is_used_again():
    device, given = Late(), []
    host = device.host
    device.host = lambda nbytes: given.append(nbytes) or host(nbytes)
    path = Staged(device, 4096)
    pair = next(pair for pair in EXACT if pair.name == "ring+dense")
    for _ in range(5):
        state = fresh_states([np.ones(40_000, np.float32)] * WORLD.size)[WORLD.rank]
        state["gradient"] = strict.asarray(state["gradient"])
        over_mpi(pair, 40_000, state, path)
    few = len(given) <= SLOTS * (AHEAD + 2) and (WORLD.size == 1 or device.begun > 100)
    texts = agree.gather_text(f"{len(given)} for {device.begun} copies: {few}", WORLD)
    assert all(text.endswith("True") for text in texts), texts
