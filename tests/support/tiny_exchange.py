"""A tiny net, its plans and gradients, and a step of an Exchanger of it, for tests on ranks."""

import numpy as np

from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.run.job import agree
from tests.support import ranks

SHAPES = {"a": (3, 5), "b": (7,), "c": (4, 2, 2), "d": (11,), "e": (6, 6)}
# "c" is split over two launches and "e" over three; "s" has no tensors.
LAYERS = {"first": "ab", "second": "cd", "s": "", "last": "e"}
PIECES = {
    ("b0", "last"): [("e", 0, 5)],
    ("b1", "last"): [("e", 20, 36)],
    ("b2", "second"): [("c", 0, 9), ("d", 0, 11), ("e", 5, 20)],
    ("b3", "first"): [("a", 0, 15), ("c", 9, 16), ("b", 0, 7)],
}
BACKWARD = ["e", "d", "c", "b", "a"]
METHODS = ["ring+dense", "direct+dense", "doubling+bf16", "all-gather+coo"]


def make_plan(comm=None, methods=("ring+dense",), mean=True, seed=0):
    """Four buckets for all ranks of `comm`, which use the methods in turn; None: of the group."""
    layers, before = [], ()
    for name, tensors in LAYERS.items():
        shapes = [Tensor(name=t, shape=SHAPES[t]) for t in tensors]
        layers.append(Layer(name=name, after=before, tensors=tuple(shapes), forward=0, backward=0))
        before = (name,)
    launches = tuple(
        Launch(
            name=name,
            pieces=tuple(Piece(*p) for p in pieces),
            after=after,
            method=methods[i % len(methods)],
            stream="inside",
            priority=i,
        )
        for i, ((name, after), pieces) in enumerate(PIECES.items())
    )
    machine = resized(machine_file.load("localhost"), 1, (comm or ranks.WORLD).size)
    graph = Net(name="tiny", layers=tuple(layers))
    return Plan(net=graph, machine=machine, launches=launches, mean=mean, seed=seed)


def gradients(step, rank):
    """Small whole numbers: their sums are exact in float32 and bfloat16, whatever the order."""
    random = np.random.default_rng([step, rank])
    return {n: random.integers(-8, 9, s).astype(np.float32) for n, s in SHAPES.items()}


def total(step, size):
    each = [gradients(step, rank) for rank in range(size)]
    return {name: sum(one[name] for one in each) for name in SHAPES}


def one_step(exchanger, step, rank, order=BACKWARD):
    mine = gradients(step, rank)
    for name in order:
        exchanger.ready(name, mine[name])
    return {name: exchanger.wait(name).copy() for name in exchanger.names}


def equal(got, want):
    """Compare on all ranks; the ranks fail together."""
    wrong = [n for n in SHAPES if got[n].shape != SHAPES[n] or not np.array_equal(got[n], want[n])]
    assert agree.gather_text(",".join(wrong), ranks.WORLD) == [""] * ranks.WORLD.size


def refused(work, *sentence):
    """All ranks must be refused with a sentence that has these words."""
    try:
        work()
        said = "nothing was refused"
    except CommschedError as error:
        said = str(error)
    everywhere = agree.gather_text(said, ranks.WORLD)
    assert all(word in text for text in everywhere for word in sentence), everywhere
