"""A deep MLP with local losses, as the stages of a pipeline and as one sequential program."""

import numpy as np

from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.stages import grid
from tests.support.pipeline_plans import staged
from tests.support.small_plans import machine

WIDTH, CLASSES, BATCH, RATE = 6, 3, 5, np.float32(0.1)
VARIANTS = {
    "greedy": {"variant": "greedy"},
    "greedy, three microbatches": {"variant": "greedy", "microbatches": 3},
    "overlapping": {"variant": "overlapping"},
    "two chunks": {"variant": "chunked", "chunks": 2, "microbatches": 2},
    "one chunk": {"variant": "chunked", "chunks": 1, "microbatches": 3},
}


def plan_of(variant: str, stages: int) -> Plan:
    """A stage per layer; messages are (BATCH, WIDTH) float32."""
    layers = tuple(
        Layer(
            name=f"l{i}",
            after=(f"l{i - 1}",) if i else (),
            forward=1e-4,
            backward=2e-4,
            tensors=(Tensor(name=f"l{i}.weight", shape=(WIDTH, WIDTH)),),
            activation=4.0 * BATCH * WIDTH,
        )
        for i in range(stages)
    )
    net = Net(name="mlp", layers=layers, source="test")
    return staged("local", stages, layers=net, on=machine(1, stages), **VARIANTS[variant])


def drawn(seed: int, *shape: int):
    return np.random.default_rng([7, seed]).standard_normal(shape).astype(np.float32)


def batch_of(step: int, microbatch: int):
    """Inputs (BATCH, WIDTH) and classes (BATCH,)."""
    x = drawn(1000 * step + microbatch, BATCH, WIDTH)
    return x, np.abs(x[:, 0] * 10).astype(int) % CLASSES


class Block:
    """One layer with ReLU, and the head of a chunk's last layer."""

    def __init__(self, number: int, has_head: bool) -> None:
        self.weight = drawn(100 + number, WIDTH, WIDTH)
        self.head = drawn(200 + number, WIDTH, CLASSES) if has_head else None
        self.grads = [np.zeros_like(self.weight), np.zeros((WIDTH, CLASSES), np.float32)]
        self.kept = {}

    def forward(self, microbatch, x):
        before = x @ self.weight
        self.kept[microbatch] = x, before
        return np.maximum(before, 0)

    def loss(self, microbatch, classes):
        """The gradient of this block's own loss with respect to its output."""
        y = np.maximum(self.kept[microbatch][1], 0)
        logits = y @ self.head
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(BATCH), classes] -= 1
        share /= np.float32(BATCH)
        self.grads[1] += y.T @ share
        return share @ self.head.T

    def backward(self, microbatch, gradient):
        """Of a gradient of the output, what comes to the input."""
        x, before = self.kept[microbatch]
        inner = gradient * (before > 0)
        self.grads[0] += x.T @ inner
        return inner @ self.weight.T

    def update(self):
        self.weight -= RATE * self.grads[0]
        if self.head is not None:
            self.head -= RATE * self.grads[1]
        for gradient in self.grads:
            gradient.fill(0)

    def bits(self):
        head = b"" if self.head is None else self.head.tobytes()
        return self.weight.tobytes() + head


def ends_of(made: Plan) -> list[bool]:
    """Which stages have a loss."""
    count = len(grid(made, made.params))
    if made.params["variant"] != "chunked":
        return [True] * count
    chunks = int(made.params["chunks"])
    last = {count * (j + 1) // chunks - 1 for j in range(chunks)}
    return [k in last for k in range(count)]


def sequential(made: Plan, steps: int) -> list[bytes]:
    """Parameters of all blocks after training one batch after the other in one process."""
    ends = ends_of(made)
    blocks = [Block(k, has) for k, has in enumerate(ends)]
    overlapping = made.params["variant"] == "overlapping"
    for step in range(steps):
        for m in range(int(made.params["microbatches"])):
            x, classes = batch_of(step, m)
            for block in blocks:
                x = block.forward(m, x)
            if overlapping:
                back = [b.backward(m, b.loss(m, classes)) for b in blocks]
                for block, gradient in zip(blocks, back[1:], strict=False):
                    block.backward(m, gradient)
                continue
            gradient = None
            for block, has in reversed(list(zip(blocks, ends, strict=True))):
                gradient = block.backward(m, block.loss(m, classes) if has else gradient)
        for block in blocks:
            block.update()
    return [block.bits() for block in blocks]


class Stage:
    """One block that gets and gives messages, as an engine or an interpreter asks."""

    def __init__(self, made: Plan, number: int) -> None:
        self.number = number
        self.ends = ends_of(made)
        self.block = Block(number, self.ends[number])
        self.got = {}  # step and name of a message -> what it brought
        self.made = {}  # step and name of a computation -> what it made

    def use_device(self, device):
        """In memory of the host."""

    def compute(self, step, op):
        if op.kind is Kind.APPLY:
            self.block.update()
            return
        direction, _, microbatch, *window = op.name.split("/")
        m = int(microbatch[1:])
        x, classes = batch_of(step, m)
        if direction == "forward":
            if self.number:
                x = self.got.pop((step, f"recv/s{self.number - 1}-s{self.number}/m{m}"))
            self.made[step, op.name] = self.block.forward(m, x)
            return
        if window or not self.ends[self.number]:
            gradient = self.got.pop((step, f"recv/s{self.number + 1}-s{self.number}/m{m}"))
        else:
            gradient = self.block.loss(m, classes)
        self.made[step, op.name] = self.block.backward(m, gradient)

    def outgoing(self, step, op):
        return self.made.pop((step, op.after[0].name)).reshape(-1).view(np.uint8)

    def incoming(self, step, op, packet):
        self.got[step, op.name] = packet.view(np.float32).reshape(BATCH, WIDTH)
