"""What ranks exchange over MPI is, bit for bit and byte for byte, what one process computes."""

import numpy as np
import pytest
from mpi4py import MPI

from commsched.codecs import CODECS
from commsched.methods import METHODS, Choice, Direct, hold, legal_methods, lockstep, node_union
from commsched.methods.held import Held
from commsched.methods.lockstep import AGREE, fresh_states
from commsched.run import agree, transfer
from commsched.run.pacer import complete
from tests import throwaway
from tests.supports import bits, gradients, group, rounded, spec

WORLD = MPI.COMM_WORLD
GROUP = group(2, WORLD.size // 2) if WORLD.size % 2 == 0 else group(1, WORLD.size)
BASIC = ("dense", "fp16", "coo")  # a codec of each kind: as it is, rounding, of unknown length


def sampled(pairs):
    """Every route with the basic codecs, every other codec with every third route, in turn."""
    routes = list(dict.fromkeys(pair.collective for pair in pairs))
    codecs = [name for name in CODECS if name not in BASIC]
    for pair in pairs:
        name = pair.codec.name
        if name in BASIC or (routes.index(pair.collective) + codecs.index(name)) % 3 == 0:
            yield pair


EVERY_PAIR = [m for m in legal_methods(GROUP) if isinstance(m, Direct)]
PAIRS = [*sampled(EVERY_PAIR)]
REGISTERED = [*METHODS.values()]  # before other tests register some of their own


class Counted:
    """One rank's side of an exchange, with the bytes that leave it."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.add, self.put, self.landing = held.add, held.put, held.landing
        self.result = held.result
        self.sent = 0

    def take(self, first, stop):
        packet = self._held.take(first, stop)
        self.sent += packet.nbytes
        return packet


def phases(method, numel, states, votes):
    """The phases of a method, each choice decided by all votes."""
    for phase in method.phases(spec(numel), GROUP):
        if isinstance(phase, Choice):
            yield phase.then(float(AGREE[phase.agree](votes(phase, states))))
        else:
            yield phase


def reference(method, numel, states):
    """Run a step in this process: bytes that each rank sends, (ranks,)."""
    sent = np.zeros(len(states), np.int64)
    for phase in phases(method, numel, states, lambda choice, all_: [*map(choice.vote, all_)]):
        held = [Counted(hold(phase, state)) for state in states]
        lockstep.exchange(phase.schedule, held)
        for state, each in zip(states, held, strict=True):
            phase.give(state, each.result())
        sent += [each.sent for each in held]
    return sent


def over_mpi(method, numel, state):
    """Run a step on all ranks: bytes that this rank sends."""
    sent = 0
    votes = lambda choice, own: agree.each(choice.vote(own), WORLD)  # noqa: E731
    for phase in phases(method, numel, state, votes):
        held = hold(phase, state)
        exchange = transfer.begin(phase.schedule, held, WORLD, 7)
        complete(exchange)
        phase.give(state, held.result())
        sent += exchange.sent
    return sent


def difference(method, inputs):
    """What is wrong on this rank after some steps with the same state, a sentence or nothing."""
    numel = len(inputs[0][0])
    states = fresh_states([np.zeros(numel, np.float32) for _ in range(WORLD.size)], 5, "b0")
    own = fresh_states([np.zeros(numel, np.float32) for _ in range(WORLD.size)], 5, "b0")[
        WORLD.rank
    ]
    for step, grads in enumerate(inputs):
        for state, gradient in zip([*states, own], [*grads, grads[WORLD.rank]], strict=True):
            state["gradient"][:] = gradient
            state["step"] = step
        sent = over_mpi(method, numel, own)
        where = f"{method.name}, {numel} elements, step {step}"
        if getattr(method, "collective", "") == "native":
            if not np.allclose(own["result"], np.sum(grads, axis=0), rtol=1e-5, atol=1e-4):
                return f"{where}: not the sum"
            continue
        wanted = reference(method, numel, states)[WORLD.rank]
        if sent != wanted:
            return f"{where}: {sent} B were sent instead of {wanted}"
        if not np.array_equal(bits(own["result"]), bits(states[WORLD.rank]["result"])):
            return f"{where}: other bits than in one process"
    return ""


def nothing_differs(found):
    """Fail on all ranks together, once all collectives are over."""
    texts = agree.gather_text("\n".join(filter(None, found)), WORLD)
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
    assert not wrong, "\n".join(wrong)


def mixed(numel, seed):
    """Another kind of support on every rank."""
    kinds = ("sparse", "empty", "full", "one", "skewed")
    return [
        gradients(kinds[(rank + seed) % 5], rank + 1, numel, seed)[rank]
        for rank in range(WORLD.size)
    ]


@pytest.mark.parametrize("numel", [5, 300])
def test_every_legal_pair_gives_the_bits_and_bytes_of_lockstep(numel):
    inputs = [rounded(WORLD.size, numel), mixed(numel, 0), gradients("empty", WORLD.size, numel)]
    nothing_differs([difference(pair, inputs) for pair in EVERY_PAIR])


def test_every_lossless_method_sums_whole_numbers_exactly():
    found = []
    for pair in [*PAIRS, *REGISTERED]:
        for kind in ("alone", "skewed"):
            grads = gradients(kind, WORLD.size, 77)
            state = fresh_states([g.copy() for g in grads])[WORLD.rank]
            over_mpi(pair, 77, state)
            if pair.lossless and not np.array_equal(state["result"], np.sum(grads, axis=0)):
                found.append(f"{pair.name}, {kind}")
    nothing_differs(found)


def test_methods_of_several_phases_give_the_bits_and_bytes_of_lockstep():
    methods = [*throwaway.ALL, *REGISTERED]
    inputs = [rounded(WORLD.size, 103), mixed(103, 1), mixed(103, 2)]
    nothing_differs([difference(method, inputs) for method in methods])


def test_pieces_that_are_coded_on_the_way_give_the_bits_and_bytes_of_lockstep(monkeypatch):
    monkeypatch.setattr(node_union, "PIECE", 16)  # B; several pieces
    inputs = [rounded(WORLD.size, 301), mixed(301, 1), gradients("empty", WORLD.size, 301)]
    nothing_differs([difference(METHODS["node-union"], inputs)])


def test_long_messages_go_in_pieces(monkeypatch):
    names = {"ring+dense", "direct+fp16", "native+dense", "all-gather+coo", "tree+coo"}
    pairs = [pair for pair in PAIRS if pair.name in names]
    assert len(pairs) == len(names)
    monkeypatch.setattr(transfer, "CUT", 64)  # B; 16 * 8 and 8 * 8 B end at a cut
    found = []
    for numel in (32 * WORLD.size, 31 * WORLD.size + 5):
        found += [difference(pair, [rounded(WORLD.size, numel), mixed(numel, 3)]) for pair in pairs]
    nothing_differs(found)


def test_an_empty_bucket_of_a_rank_is_no_obstacle():
    pairs = [pair for pair in PAIRS if pair.collective != "native"]
    inputs = [[gradients("alone", WORLD.size, numel)] for numel in (1, 2)]
    nothing_differs([difference(pair, each) for pair in pairs for each in inputs])
