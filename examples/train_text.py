"""Train a small language model on Python's own manual, data-parallel, with commsched.Exchanger.

Run it as `mpiexec -n 4 python examples/train_text.py`. The model guesses the next word from the
last three (after Bengio et al., "A neural probabilistic language model", JMLR 3, 2003): word
vectors, a tanh layer, a softmax. Every rank trains on its own share of the text; the ranks'
parameters stay the same to the last bit.
"""

import argparse
import hashlib
import os
import re
import sys
import time
from collections import Counter
from pydoc_data.topics import topics

# Ranks that share a processor must not each take all of its cores for a matrix product.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

import commsched
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.graph import Layer, Net, Tensor
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request

WORDS, LAST, WIDTH, HIDDEN = 1000, 3, 64, 128
STREAMS, RUN = 48, 5  # places where the text is read at the same time, and words read in a step
RATE = 0.5
# Layers and their tensors in forward order; gradients come in the opposite order.
LAYERS = {"words": ("vectors",), "hidden": ("inner", "bias"), "softmax": ("outer",)}


def read_text(rank, ranks):
    """This rank's streams of word numbers, (STREAMS / ranks, words); 0 is any rare word."""
    text = " ".join(topics[name] for name in sorted(topics)).lower()
    words = re.findall(r"[a-z_']+|[.,;:()]", text)
    number = {word: i for i, (word, _) in enumerate(Counter(words).most_common(WORDS - 1), 1)}
    streams = np.array([number.get(word, 0) for word in words[: len(words) // STREAMS * STREAMS]])
    mine = STREAMS // ranks
    return streams.reshape(STREAMS, -1)[rank * mine : (rank + 1) * mine]


def batch(streams, step):
    """The next words of all streams with the LAST words before each: (m, LAST), (m,)."""
    at = step * RUN % (streams.shape[1] - LAST - RUN)
    windows = np.lib.stride_tricks.sliding_window_view(streams, LAST + 1, axis=1)
    windows = windows[:, at : at + RUN].reshape(-1, LAST + 1)
    return windows[:, :LAST], windows[:, LAST]


def first_parameters():
    random = np.random.default_rng(0)
    shapes = {"vectors": (WORDS, WIDTH), "inner": (LAST * WIDTH, HIDDEN), "outer": (HIDDEN, WORDS)}
    made = {
        name: random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }
    return made | {"bias": np.zeros(HIDDEN, np.float32)}


def forward(parameters, context):
    """What goes into the tanh layer, what comes out, and each word's probability: (m, ...)."""
    looked_up = parameters["vectors"][context].reshape(len(context), -1)
    hidden = np.tanh(looked_up @ parameters["inner"] + parameters["bias"])
    scores = hidden @ parameters["outer"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return looked_up, hidden, scores / scores.sum(axis=1, keepdims=True)


def backward(parameters, context, target, values):
    """Yield each gradient of the mean cross-entropy as soon as it is there, last layer first."""
    looked_up, hidden, probabilities = values
    error = probabilities.copy()
    error[np.arange(len(target)), target] -= 1
    error /= np.float32(len(target))
    yield "outer", hidden.T @ error
    error = error @ parameters["outer"].T * (1 - hidden**2)
    yield "bias", error.sum(axis=0)
    yield "inner", looked_up.T @ error
    vectors = np.zeros_like(parameters["vectors"])
    np.add.at(vectors, context, (error @ parameters["inner"].T).reshape(*context.shape, WIDTH))
    yield "vectors", vectors


def measure(parameters, streams, comm):
    """Seconds of the forward pass, and of each layer's backward, as rank 0 measures them."""
    best = np.full(1 + len(LAYERS), np.inf)
    last = [tensors[0] for tensors in LAYERS.values()]  # of each layer's gradients
    for step in range(5):
        context, target = batch(streams, step)
        start = time.perf_counter()
        values = forward(parameters, context)
        marks = [start, time.perf_counter()]
        for name, _ in backward(parameters, context, target, values):
            if name in last:
                marks.append(time.perf_counter())
        best = np.minimum(best, np.diff(marks))
    comm.Bcast(best, 0)  # the ranks must hold the same plan
    return float(best[0]), best[:0:-1].tolist()


def plan_for(parameters, streams, comm):
    """A plan for this model, its measured times and this many ranks of one machine."""
    forward_seconds, backward_seconds = measure(parameters, streams, comm)
    layers, before = [], ()
    for (name, tensors), seconds in zip(LAYERS.items(), backward_seconds, strict=True):
        layers.append(
            Layer(
                name=name,
                after=before,
                tensors=tuple(Tensor(name=t, shape=parameters[t].shape) for t in tensors),
                forward=forward_seconds / len(LAYERS),
                backward=seconds,
            )
        )
        before = (name,)
    net = Net(name="text", layers=tuple(layers), batch=STREAMS // comm.size * RUN)
    machine = resized(machine_file.load("localhost"), 1, comm.size)
    return make_plan(Request(net=net, machine=machine, params={"overlap": "backward"}))


def train(steps, timeline, comm):
    """Train and print; returns this rank's parameters and the printed losses over all ranks."""
    streams, parameters = read_text(comm.rank, comm.size), first_parameters()
    plan, losses = plan_for(parameters, streams, comm), []
    with commsched.Exchanger(plan, comm, timeline=timeline) as exchanger:
        for step in range(steps):
            context, target = batch(streams, step)
            values = forward(parameters, context)
            for name, gradient in backward(parameters, context, target, values):
                exchanger.ready(name, gradient)
            if step % max(steps // 10, 1) == 0 or step == steps - 1:
                loss = -np.log(values[2][np.arange(len(target)), target]).mean(keepdims=True)
                comm.Allreduce(MPI.IN_PLACE, loss)  # while the gradients travel
                losses.append(float(loss[0]) / comm.size)
                if comm.rank == 0:
                    print(f"step {step:5}  loss {losses[-1]:.6f}", flush=True)
            for name in exchanger.names:
                parameters[name] -= np.float32(RATE) * exchanger.wait(name)
    return parameters, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="default: 500")
    parser.add_argument("--timeline", metavar="FILE", help="leave the measured timeline here")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if STREAMS % comm.size:
        parser.error(f"the number of ranks must divide {STREAMS}, got {comm.size}")
    parameters, losses = train(options.steps, options.timeline, comm)
    digest = hashlib.sha256(b"".join(parameters[name].tobytes() for name in sorted(parameters)))
    digests = np.empty((comm.size, digest.digest_size), np.uint8)
    comm.Allgather(np.frombuffer(digest.digest(), np.uint8), digests)
    if (digests != digests[0]).any():
        sys.exit("the ranks hold different parameters")
    if len(losses) > 1 and losses[-1] >= losses[0]:
        sys.exit(f"the loss did not fall: {losses[0]:.6f} at first, {losses[-1]:.6f} at last")
    if comm.rank == 0:
        print(f"all {comm.size} ranks hold the same parameters, {digest.hexdigest()[:12]}")


if __name__ == "__main__":
    main()
