"""Pipelines on real ranks: names, bytes and messages of the simulation; who got what from whom."""

import time

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.program.registry import STRATEGIES
from commsched.run import session
from commsched.run.engine.messages import Blank
from commsched.run.session import RunOptions
from commsched.simulate.engine import simulate
from tests.support import ranks
from tests.support.local_losses import VARIANTS, Stage, plan_of, sequential
from tests.support.overlaps import overlaps
from tests.support.pipeline_plans import net, staged
from tests.support.ranks import WORLD, together
from tests.support.small_plans import machine

pytestmark = pytest.mark.groups(4)
STEPS = 3
EVERY = [
    ("gpipe", {"microbatches": 3}),
    ("1f1b", {"microbatches": 3, "near": "replicas"}),
    ("1f1b", {"microbatches": 2 * WORLD.size, "interleave": 2}),
    ("samo", {"microbatches": 5, "pruned": 0.9}),
    ("samo", {"microbatches": 2, "pruned": 0.0}),
    ("local", {}),
    ("local", {"variant": "overlapping"}),
    ("local", {"variant": "chunked", "chunks": 1, "microbatches": 2}),
]


def depths() -> list[int]:
    """Two stages, and as many as there are ranks."""
    return sorted({k for k in (2, WORLD.size) if WORLD.size % k == 0})


def cases():
    """Every strategy with each depth; in a job that is split, with one of them in turn."""
    found = depths()
    return [
        (name, params, stages)
        for number, (name, params) in enumerate(EVERY)
        for stages in ([found[number % len(found)]] if ranks.in_groups else found)
        if stages > 1 or "interleave" not in params
    ]


def made_of(name, params, stages):
    layers = net(2 * WORLD.size, elements=300, activation=5000.0).scaled(1.0, 0.1)
    on = machine(1, WORLD.size)
    return staged(name, stages, WORLD.size // stages, layers=layers, on=on, **params)


class Signed:
    """Every message says who sent it, in which step, and under which name."""

    wrong: list[str]

    def __init__(self, made, rank):
        self.rank = rank
        roles = STRATEGIES[made.strategy].lower(made, 0, {}).roles
        mine = next(role for role in roles if rank in role.ranks)
        self.peers = [role.ranks[mine.ranks.index(rank)] for role in roles]
        Signed.wrong = []

    def _text(self, step, source, name, size):
        text = f"{step} {source} {name} ".encode()
        return np.resize(np.frombuffer(text, np.uint8), size)

    def use_device(self, device):
        """In memory of the host."""

    def compute(self, step, op):
        """Nothing but time."""

    def outgoing(self, step, op):
        return self._text(step, self.rank, op.name, op.nbytes)

    def incoming(self, step, op, packet):
        want = self._text(step, self.peers[op.peer], op.match, op.nbytes)
        if not np.array_equal(packet, want):
            Signed.wrong.append(f"{op.name} in step {step} is {bytes(packet[:40])!r}")


@pytest.mark.by_day(3)
@pytest.mark.parametrize(("name", "params", "stages"), cases())
def test_names_bytes_and_messages_are_those_of_the_simulation(folder, name, params, stages):
    made = made_of(name, params, stages)
    options = RunOptions(steps=STEPS, mail=Signed, timeout=30.0)
    measured = session.run(made, WORLD, folder / "m.json", options)
    problems = list(Signed.wrong)
    if measured is not None:
        predicted = simulate(made, STEPS).timeline()
        found, wanted = (
            {(s.rank, s.step, s.stream, s.name): s.nbytes for s in t} for t in (measured, predicted)
        )
        problems += [f"only measured: {key}" for key in found.keys() - wanted.keys()]
        problems += [f"only predicted: {key}" for key in wanted.keys() - found.keys()]
        both = found.keys() & wanted.keys()
        problems += [f"{k}: {wanted[k]}, {found[k]} B" for k in both if wanted[k] != found[k]]
        problems += [str(pair) for pair in overlaps(measured) if pair[0].stream != "receive"]
    together(problems[:5])


@pytest.mark.parametrize("option", ["--verify", "--replan"])
def test_what_is_for_sync_only_is_refused_on_all_ranks(folder, option):
    made = made_of("gpipe", {}, WORLD.size)
    options = RunOptions(verify=option == "--verify", replan=lambda *_: made)
    if option == "--verify":
        options.replan = None
    with pytest.raises(CommschedError, match=f"{option} is for strategy 'sync'"):
        session.run(made, WORLD, folder / "m.json", options)
    WORLD.Barrier()
    together(["something was written"] * bool(list(folder.iterdir())))


@pytest.mark.by_day(3)
@pytest.mark.groups(3, 4)  # two chunks need an even number
@pytest.mark.skipif(WORLD.size == 1, reason="one rank has no neighbour")
@pytest.mark.parametrize("variant", VARIANTS)
def test_streaming_on_ranks_is_sequential_training_bit_for_bit(folder, variant):
    if variant == "two chunks" and WORLD.size % 2:
        pytest.skip("chunks of the same size")
    made = plan_of(variant, WORLD.size)
    kept = []

    def stage(plan, rank):
        kept.append(Stage(plan, rank))
        return kept[0]

    session.run(made, WORLD, folder / "m.json", RunOptions(steps=5, mail=stage, timeout=30.0))
    same = kept[0].block.bits() == sequential(made, 5)[WORLD.rank]
    together([] if same else ["other bits than in one process"])


class Late(Blank):
    """The first message leaves when computations are far ahead."""

    FAR = 12  # steps

    def __init__(self, made, rank):
        super().__init__()
        self.first, self.at = rank == 0, 0

    def compute(self, step, op):
        self.at = step

    def outgoing(self, step, op):
        while self.first and step == 0 and self.at < self.FAR:
            time.sleep(1e-3)
        return super().outgoing(step, op)


@pytest.mark.groups(3)
@pytest.mark.skipif(WORLD.size == 1, reason="one rank has no neighbour")
def test_a_stage_whose_messages_lag_far_behind_sends_all_of_them(folder):
    made = plan_of("greedy", WORLD.size)
    steps = Late.FAR + 2
    measured = session.run(made, WORLD, folder / "m.json", RunOptions(steps=steps, mail=Late))
    found = [s.step for s in measured or () if (s.rank, s.name) == (0, "send/s0-s1/m0")]
    together([f"sent {found}"] if measured and found != list(range(steps)) else [])
