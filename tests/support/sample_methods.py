"""One small method of each kind that must fit the interfaces; for tests only, never registered.

Lossy and stateful in several phases (low rank), stochastic and not addable (quantised), lossy
merging with feedback (top-k), a choice that depends on the data (switching), regions that depend
on the data (regions), all-to-all and all-gather of partitions (push and pull).
"""

import math

import numpy as np

from commsched.coding.codec import Codec
from commsched.coding.registry import CODECS
from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.pair import Pair, route
from commsched.exchange.payload import Payload
from commsched.kernels import random
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Goal


def free(device):
    """No time, which a throw-away method may claim."""
    return 0.0


def phase(name, schedule, payload, take, give):
    return Phase(
        name=name,
        schedule=schedule,
        payload=payload,
        take=take,
        give=give,
        take_seconds=free,
        give_seconds=free,
    )


def result(state, values):
    state["result"] = values


class LowRank(Method):
    """PowerSGD of rank 2: two sums with orthogonalisation between, warm start, error feedback.

    Source: Vogels, Karimireddy & Jaggi, "PowerSGD", NeurIPS 2019.
    """

    name = "low-rank"
    lossless = False

    def phases(self, spec, group):
        rows = math.isqrt(spec.numel)
        cols = -(-spec.numel // rows)
        rank = min(2, rows, cols)
        schedule = route("ring", group)

        def take_left(state):
            wanted = np.zeros(rows * cols, np.float32)
            wanted[: spec.numel] = state["gradient"]
            wanted += state.get("error", np.float32(0))
            state["wanted"] = wanted.reshape(rows, cols)
            if "right" not in state:
                rng = random.generator(state["seed"], 0, 0, f"{state['name']}/right")
                state["right"] = rng.standard_normal((cols, rank), np.float32)
            return (state["wanted"] @ state["right"]).ravel()

        def give_left(state, total):
            state["left"] = orthogonal(total.reshape(rows, rank))

        def take_right(state):
            state["own"] = state["wanted"].T @ state["left"]
            return state["own"].ravel().copy()

        def give_right(state, total):
            total = total.reshape(cols, rank)
            delivered = state["left"] @ total.T
            result(state, delivered.ravel()[: spec.numel].copy())
            state["error"] = (state["wanted"] - state["left"] @ state["own"].T).ravel()
            state["right"] = total.copy()

        left, right = (
            Payload.reducing(schedule, CODECS["dense"], BucketSpec.uniform(side * rank))
            for side in (rows, cols)
        )
        return (
            phase("left", schedule, left, take_left, give_left),
            phase("right", schedule, right, take_right, give_right),
        )


def orthogonal(matrix):
    """Gram-Schmidt over the columns; a column that depends on the others becomes zero."""
    out = matrix.astype(np.float64)
    for i in range(out.shape[1]):
        out[:, i] -= out[:, :i] @ (out[:, :i].T @ out[:, i])
        norm = np.sqrt((out[:, i] ** 2).sum())
        out[:, i] = out[:, i] / norm if norm > 1e-6 else 0
    return out.astype(np.float32)


class Quantised(Codec):
    """One scale and a signed byte per value, rounded at random: packets that cannot be added.

    Source: Alistarh et al., "QSGD", NeurIPS 2017.
    """

    name = "quantised"
    lossless = False
    addable = False
    fixed = True
    encode_traffic = add_traffic = decode_traffic = 1.0
    LEVELS = 100

    def encode(self, values, state, start=0):
        rng = random.generator(state["seed"], state["step"], state["rank"], state["name"])
        scale = np.abs(values).max(initial=0)
        unit = values / scale * self.LEVELS if scale else values
        levels = np.floor(unit + rng.random(len(values), np.float32)).astype(np.int8)
        return np.concatenate([np.array([scale], np.float32).view(np.int8), levels]).view(np.uint8)

    def decode(self, packet, out):
        out[:] = packet[4:].view(np.int8) * (packet[:4].view(np.float32) / self.LEVELS)

    def add(self, packet, out):
        out += packet[4:].view(np.int8) * (packet[:4].view(np.float32) / self.LEVELS)

    def nbytes(self, spec, start, stop, merged):
        return np.asarray(4.0 + stop - start)

    def packet(self, values, nbytes=None):
        return np.empty(4 + values, np.uint8)


class TopK(Codec):
    """The largest tenth of a run; encoding that run again changes nothing, a longer one would."""

    name = "top-k"
    lossless = False
    addable = True
    fixed = True
    encode_traffic = add_traffic = decode_traffic = 1.0

    def encode(self, values, state, start=0):
        kept = np.sort(np.argsort(-np.abs(values), kind="stable")[: self._kept(len(values))])
        return np.concatenate([kept.astype(np.int32).view(np.uint8), values[kept].view(np.uint8)])

    def decode(self, packet, out):
        out.fill(0)
        self.add(packet, out)

    def add(self, packet, out):
        index, values = packet[: len(packet) // 2], packet[len(packet) // 2 :]
        out[index.view(np.int32)] += values.view(np.float32)

    def nbytes(self, spec, start, stop, merged):
        return 8.0 * self._kept(stop - start)

    def packet(self, values, nbytes=None):
        return np.empty(8 * self._kept(values), np.uint8)

    @staticmethod
    def _kept(numel):
        return -(-numel // 10)


class Unlisted(Pair):
    """A collective with a codec that is not registered."""

    def __init__(self, collective, codec):
        self.name = f"{codec.name}-by-{collective}"
        self.collective = collective
        self.codec = codec
        self.lossless = codec.lossless


class Feedback(Method):
    """Top-k where the rank that drops keeps the loss, also of sums that it merged.

    Source: Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019.
    """

    lossless = False

    def __init__(self, collective):
        self.name = f"feedback-{collective}"
        self.collective = collective

    def phases(self, spec, group):
        schedule = route(self.collective, group)

        def take(state):
            lost = state.setdefault("lost", np.zeros(spec.numel, np.float32))
            state["gradient"] += lost
            lost.fill(0)
            return state["gradient"]

        return (phase("", schedule, Payload.reducing(schedule, TopK(), spec), take, result),)


class Switching(Method):
    """Sum shares sparsely, then vote: gather them as lists where they are sparse, else densely.

    Source: Renggli et al., "SparCML" (DSAR), SC 2019.
    """

    name = "switching"
    lossless = True

    def phases(self, spec, group):
        split = route("reduce-scatter-direct", group)
        payload = Payload.reducing(split, CODECS["coo"], spec)
        return (
            phase("split", split, payload, lambda state: state["gradient"], keep_share),
            Choice(
                name="switch",
                vote=lambda state: float(np.count_nonzero(state["share"])),
                agree="sum",
                expected=float(spec.nonzeros(np.array([0]), np.array([spec.numel]), group.size)[0]),
                then=lambda filled: self._gather(spec, group, 2 * filled > spec.numel),
            ),
        )

    def _gather(self, spec, group, dense):
        schedule = route("all-gather-direct", group)
        codec, cuts = CODECS["dense" if dense else "coo"], spec.cuts(group.size)

        def sizes():
            return codec.nbytes(spec, cuts[:-1], cuts[1:], group.size)

        def give(state, packets):
            for packet, first, stop in zip(packets, cuts[:-1], cuts[1:], strict=True):
                codec.decode(packet, state["gradient"][first:stop])
            result(state, state["gradient"])

        payload = Payload(codec=codec, sizes=sizes)
        return phase("gather", schedule, payload, lambda s: codec.encode(s["share"], s), give)


def keep_share(state, block):
    state["share"] = block.copy()


class EarlyChoice(Method):
    """Vote before anything is sent: the densest rank decides between lists and a dense ring."""

    name = "early-choice"
    lossless = True

    def phases(self, spec, group):
        def then(densest):
            sparse = 4 * densest < spec.numel
            pair = Pair("all-gather", "coo") if sparse else Pair("ring", "dense")
            return pair.phases(spec, group)[0]

        def vote(state):
            return float(np.count_nonzero(state["gradient"]))

        return (Choice(name="way", vote=vote, agree="max", expected=0.0, then=then),)


class Regions(Method):
    """Agree on regions of equal work, send each region's list to its owner, gather the sums.

    Source: Li & Hoefler, "Near-optimal sparse allreduce" (Ok-Topk), PPoPP 2022.
    """

    name = "regions"
    lossless = True

    def phases(self, spec, group):
        ranks, coo = group.size, CODECS["coo"]
        everyone, across = route("all-gather", group), route("all-to-all", group)

        def propose(state):
            places = np.flatnonzero(state["gradient"])
            share = np.arange(1, ranks) / ranks
            even = (share * spec.numel).astype(np.int64)
            mine = places[(share * len(places)).astype(np.int64)] if len(places) else even
            return mine.astype(np.int64).view(np.uint8)

        def agree(state, packets):
            proposed = np.mean([p.view(np.int64) for p in packets], axis=0).astype(np.int64)
            state["cuts"] = np.array([0, *np.sort(proposed).tolist(), spec.numel])

        def split(state):
            cuts, values = state["cuts"], state["gradient"]
            return [coo.encode(values[cuts[d] : cuts[d + 1]], state) for d in range(ranks)]

        def merge(state, packets):
            cuts, rank = state["cuts"], state["rank"]
            state["share"] = added(packets, cuts[rank + 1] - cuts[rank])

        def compose(state, packets):
            cuts = state["cuts"]
            for owner, packet in enumerate(packets):
                coo.decode(packet, state["gradient"][cuts[owner] : cuts[owner + 1]])
            result(state, state["gradient"])

        bounds = Payload(codec=coo, sizes=lambda: np.full(ranks, 8.0 * (ranks - 1)))
        return (
            phase("regions", everyone, bounds, propose, agree),
            phase("split", across, shares(spec, across, 1), split, merge),
            phase("gather", everyone, shares(spec, everyone, ranks), encode_share, compose),
        )


class PushPull(Method):
    """Push each partition's list to its owner, pull the sums; partitions are dealt like cards.

    Source: Wang et al., "Zen", OSDI 2025.
    """

    name = "push-pull"
    lossless = True

    def phases(self, spec, group):
        ranks, coo = group.size, CODECS["coo"]
        push, pull = route("all-to-all", group), route("all-gather-direct", group)

        def split(state):
            return [coo.encode(state["gradient"][d::ranks], state) for d in range(ranks)]

        def merge(state, packets):
            state["share"] = added(packets, len(state["gradient"][state["rank"] :: ranks]))

        def compose(state, packets):
            for owner, packet in enumerate(packets):
                coo.decode(packet, state["gradient"][owner::ranks])
            result(state, state["gradient"])

        return (
            phase("push", push, shares(spec, push, 1), split, merge),
            phase("pull", pull, shares(spec, pull, ranks), encode_share, compose),
        )


def added(packets, numel):
    """The sum of coordinate lists over a run of `numel` elements."""
    total = np.zeros(numel, np.float32)
    for packet in packets:
        CODECS["coo"].add(packet, total)
    return total


def encode_share(state):
    return CODECS["coo"].encode(state["share"], state)


def shares(spec, schedule, merged):
    """Expected bytes of lists over equal shares of the bucket."""
    ranks, coo = schedule.ranks, CODECS["coo"]
    cuts = spec.cuts(ranks)
    each = coo.nbytes(spec, cuts[:-1], cuts[1:], merged)
    repeats = ranks if schedule.goal is Goal.ALL_TO_ALL else 1
    return Payload(codec=coo, sizes=lambda: np.tile(each, repeats))


LOSSLESS = (Switching(), EarlyChoice(), Regions(), PushPull())
# Of the schedules in which one rank makes each sum, those that never join runs on the way back.
FEEDBACK = tuple(Feedback(name) for name in ("ring", "tree", "direct"))
ALL = (*LOSSLESS, *FEEDBACK, LowRank(), Unlisted("all-gather", Quantised()))
