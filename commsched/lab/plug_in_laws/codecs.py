"""The laws of a codec: values, sizes, additions, broken gradients, feedback, and cost."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import product

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import Codec
from commsched.coding.registry import CODECS
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import Pair, illegal, route
from commsched.exchange.state import kept_of
from commsched.kernels.merge import listed
from commsched.lab.plug_in_laws import prices
from commsched.lab.plug_in_laws.collectives import grid
from commsched.lab.plug_in_laws.finding import Finding, Skipped, examined, require
from commsched.machine.model import Machine
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal

SIZES = (0, 1, 2, 7, 1000, 2048)  # 2048: whole blocks of any usual size
DRAWS = 100  # of random supports, or of random roundings
RARE = 12  # expected draws; a rarer event may not occur at all
SIGMA = 5.0  # standard errors: a law that holds fails for one of 1.7 million seeds
HALF_ULP = 2.0**-24  # of float32, relative
ROUNDED = 64 * HALF_ULP  # relative error of a reordered sum, or of transformed values
WAYS = ("ring", "all-gather")
NEAR, FAR = (3000, 77), (100_000, 90_000)  # values, and an element beyond 16 bits of the second
SMALL = 256  # B of state, such as thresholds and counts, that `memory` may omit


def laws(name: str, machines: Sequence[Machine]) -> Iterator[Finding]:
    """Examine a codec, also on the given machines."""
    codec = CODECS[name]
    yield examined("values", lambda: _values(codec))
    yield examined("finite", lambda: _finite(codec))
    yield examined("places", lambda: _places(codec))
    yield examined("broken", lambda: _broken(codec))
    yield examined("sizes", lambda: _sizes(codec))
    yield examined("add", lambda: _add(codec))
    yield examined("again", lambda: _again(codec))
    yield examined("bias", lambda: _bias(codec))
    yield examined("feedback", lambda: _feedback(codec))
    yield examined("kept", lambda: _kept(codec))
    yield examined("ranks", lambda: _ranks(codec))
    yield examined("bytes", lambda: _bytes(codec))
    for machine in machines:
        yield examined(f"price on {machine.size} ranks", partial(_price, codec, machine))


def way(codec: Codec) -> str:
    """Return a collective that carries the codec."""
    return next(name for name in WAYS if not illegal(route(name, grid(1, 4)), codec))


def _normal(numel: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def _packet(codec: Codec, values: Array, step: int = 0, start: int = 0) -> Array:
    """Encode; return the packet as a receiver gets it: bytes at any address."""
    sent = values.copy()
    packet = codec.encode(sent, {"seed": 7, "step": step, "rank": 1, "name": "w"}, start).copy()
    require(np.array_equal(sent, values, equal_nan=True), "encode changes the gradient")
    message = np.concatenate([np.zeros(1, np.uint8), packet.view(np.uint8)])
    return message[1:]


def _bytes_of(packet: Array) -> bytes:
    return bytes(packet.view(np.uint8))


def _decoded(codec: Codec, packet: Array, numel: int) -> Array:
    out = np.full(numel, 7.0, np.float32)
    codec.decode(packet, out)
    return out


def _round_trip(codec: Codec, values: Array, step: int = 0, start: int = 0) -> Array:
    return _decoded(codec, _packet(codec, values, step, start), len(values))


def _values(codec: Codec) -> str:
    """Require equal values of a lossless codec; return a lossy one's error on normal values."""
    for numel in SIZES:
        values = _normal(numel)
        values[::3] = 0
        found = _round_trip(codec, values)
        same = not codec.lossless or np.array_equal(found, values)
        require(same, f"lossless, but {numel} values come back changed")
        same = _bytes_of(_packet(codec, values)) == _bytes_of(_packet(codec, values))
        require(same, "equal states write different packets: draw by seed, step, rank and name")
    if codec.lossless:
        return "come back as they were"
    values = _normal(4096)
    lost = np.linalg.norm(_round_trip(codec, values) - values)
    error = float(lost / np.linalg.norm(values))
    most = 1.0 if codec.feedback else np.inf
    require(error <= most, f"feedback needs an error below 100%, got {error:.3g}")
    return f"relative L2 error {error:.3g} on normal values"


def _finite(codec: Codec) -> str:
    """Require finite values of the gradient's size where a codec may divide by zero or overflow."""
    odd = {
        "zeros": np.zeros(1000, np.float32),
        "equal values": np.full(1000, -3.0, np.float32),
        "tiny values": np.array([1e-45, -1e-45, 1e-40, 0.0] * 200, np.float32),
        "one value of many": np.eye(1, *NEAR, dtype=np.float32)[0],
    }
    for what, values in odd.items():
        found = _round_trip(codec, values)
        require(bool(np.isfinite(found).all()), f"{what} come back as what is no number")
        same = not codec.lossless or np.array_equal(found, values)
        require(same, f"lossless, but {what} come back changed")
    return "zeros, equal, tiny and single values come back as numbers"


def _places(codec: Codec) -> str:
    """Require that a single non-zero value is decoded at its own index, at any length."""

    def back(numel: int, at: int) -> tuple[bool, bool]:
        """Tell whether no other element is non-zero, and whether the value is unchanged."""
        found = _round_trip(codec, np.eye(1, numel, at, dtype=np.float32)[0])
        return not np.delete(found, at).any(), bool(found[at] == 1)

    if not back(*NEAR)[0]:
        raise Skipped("a single value gives others, too")
    (alone, same), told = back(*FAR), f"element {FAR[1]:,} of {FAR[0]:,}"
    require(alone, f"{told} comes back elsewhere: its number needs more bits")
    require(same or not codec.lossless, f"lossless, but {told} comes back changed")
    return f"{told} comes back nowhere else"


def _broken(codec: Codec) -> str:
    """Require that every receiver sees a NaN or an infinity."""
    for broken, at in product((np.nan, np.inf, -np.inf), (0, 5, 699)):
        values = _normal(700)
        values[at] = broken
        with np.errstate(invalid="ignore", over="ignore"):
            found = _round_trip(codec, values)
        seen = not np.isfinite(found).all()
        told = f"{broken} in a gradient comes back as a number: nobody sees that it broke"
        require(seen, f"{told}; it was element {at} of 700")
    return "NaN and infinities are seen"


def _expected(codec: Codec, spec: BucketSpec, start: int = 0, merged: int = 1) -> float:
    """Return the expected bytes of elements from `start` on in a sum of `merged` ranks."""
    found = codec.nbytes(spec, np.array([start]), np.array([spec.numel]), merged)
    return float(np.atleast_1d(found)[0])


def _runs(codec: Codec) -> list[tuple[int, int]]:
    """Return (start, merged ranks) of the tested runs: a rank's bucket, and a part of a sum."""
    return [(0, 1), (1000, 2)] if codec.addable else [(0, 1)]


def _sizes(codec: Codec) -> str:
    """Compare packets with `nbytes`: each one if sizes are fixed, the mean for random supports."""
    for start, merged in _runs(codec):
        what = f", elements from {start} on of a sum of {merged} ranks," if start else ""
        if codec.fixed or codec.lossless:
            _known_sizes(codec, start, merged, what)
        _mean_size(codec, start, merged, what)
    dense = _expected(codec, BucketSpec.uniform(100_000)) / 100_000
    return f"nbytes is right; {dense:.3g} B per value of a dense gradient"


def _known_sizes(codec: Codec, start: int, merged: int, what: str) -> None:
    for numel in SIZES:
        values = np.arange(1, numel + 1, dtype=np.float32)
        made = _packet(codec, values, start=start).nbytes
        said = _expected(codec, BucketSpec.uniform(start + numel), start, merged)
        require(made == said, f"{numel} values{what} take {made} B, but nbytes says {said:g}")
        room = codec.packet(numel).nbytes if codec.fixed else made
        require(room == made, f"packet({numel}) has {room} B for packets of {made} B")


def _mean_size(codec: Codec, start: int, merged: int, what: str) -> None:
    law, rng, numel = Sparsity(law="uniform", density=0.03), np.random.default_rng(1), 8000
    sizes = []
    for _ in range(DRAWS):
        values = np.zeros(numel, np.float32)
        for _ in range(merged):
            values[law.support(numel, rng)] += 1.0
        sizes.append(_packet(codec, values[start:], start=start).nbytes)
    said = _expected(codec, BucketSpec(((law, numel, 0, numel),)), start, merged)
    mean = float(np.mean(sizes))
    slack = SIGMA * float(np.std(sizes, ddof=1)) / np.sqrt(DRAWS) + 1e-4 * mean
    right, count = abs(mean - said) <= slack, numel - start
    told = f"{count} values of density 3%{what} take {mean:g} B, but nbytes says {said:g}"
    require(right, told)


def _add(codec: Codec) -> str:
    """Require that adding and listing packets agree with `decode`, also for NaN."""
    for numel in SIZES:
        for broken in (False, True):
            values = _normal(numel)
            values[: numel * broken : 3] = np.nan
            with np.errstate(invalid="ignore", over="ignore"):
                _added(codec, _packet(codec, values), values)
    return "is decode and +"


def _added(codec: Codec, packet: Array, values: Array) -> None:
    numel = len(values)
    told = f"for {numel} values{', some of them NaN' * bool(np.isnan(values).any())}"
    decoded, total = _decoded(codec, packet, numel), _normal(numel, 1)
    want = total + decoded
    if (just := codec.plain_sum(packet, total.copy())) is not None:
        same = np.array_equal(just[1] + just[0], want, equal_nan=True)
        require(same, f"plain_sum is not decode and + {told}")
    codec.add(packet, total)
    same = np.array_equal(total, want, equal_nan=True)
    require(same, f"add is not decode and + {told}")
    packets = [packet, *(_packet(codec, _normal(numel, rank)) for rank in (2, 3))]
    parts = [_decoded(codec, each, numel) for each in packets]
    want = np.sum(parts, axis=0)
    codec.combine(packets, total)
    lost = np.isnan(want) & np.isfinite(total)
    require(not lost.any(), f"combine loses the NaN of a packet {told}")
    slack = ROUNDED * sum(map(_size, parts))
    close = codec.votes or np.isnan(want).any() or _off(total, want) <= slack
    require(close, f"combine is not decode and + {told}; of a vote say `votes = True`")
    if codec.lists:
        again, found = codec.pack(listed(values), numel), codec.listed(packet, numel)
        same = _bytes_of(again) == bytes(packet)
        require(same, f"pack does not write what encode writes {told}")
        same = all(map(partial(np.array_equal, equal_nan=True), found, listed(decoded)))
        require(same, f"listed does not read what decode reads {told}")


def _size(values: Array) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _off(found: Array, want: Array) -> float:
    return _size(found.astype(np.float64) - want)


def _again(codec: Codec) -> str:
    """Require of an addable codec that decoded values encode without further loss."""
    if not codec.addable:
        raise Skipped("not addable: for all-gather only")
    values = _normal(1000)
    for cut in (1000, 1, 500):
        runs = zip(np.split(values, [cut]), (0, cut), strict=True)
        joined = np.concatenate([_round_trip(codec, run, start=start) for run, start in runs])
        same = np.array_equal(_round_trip(codec, joined), joined)
        require(same, "addable, but values that were decoded lose something when encoded again")
    return "decoded values encode without further loss"


def _bias(codec: Codec) -> str:
    if not codec.unbiased:
        raise Skipped("it does not say that it is unbiased")
    values = _normal(500)
    found = np.array([_round_trip(codec, values, step) for step in range(DRAWS)], np.float64)
    error = np.abs(found.mean(axis=0) - values)
    spread = np.ptp(found, axis=0)
    rare = RARE / DRAWS * np.where(spread > 0, spread, spread.max())
    slack = SIGMA * found.std(axis=0, ddof=1) / np.sqrt(DRAWS) + rare + 1e-6
    require(bool((error <= slack).all()), f"unbiased, but the mean of {DRAWS} draws is off")
    return f"the mean of {DRAWS} draws is the gradient"


def _nbytes(kept: object) -> int:
    """Count the bytes of a codec's state."""
    if isinstance(kept, dict | tuple | list):
        return sum(map(_nbytes, kept.values() if isinstance(kept, dict) else kept))
    return np.asarray(kept).nbytes


def _kept(codec: Codec) -> str:
    """Require that the state after a checkpoint leads to the same packets."""
    wrong = "what it keeps is not stored: see `keep` of commsched.exchange.state"
    if not codec.stateful:
        wrong = f"it keeps something from step to step, but does not say `stateful = True`; {wrong}"
    numel = 10_000

    def values(step: int) -> Array:
        scales = np.float32(10) ** _normal(10, step)
        return _normal(numel, step) * np.repeat(scales, numel // 10)

    (state,) = fresh_states([np.zeros(0, np.float32)], 3, "w")
    for step in range(3):
        state["step"] = step
        codec.encode(values(step), state)
    kept = kept_of(deepcopy(state))
    size = _nbytes(kept) / numel
    told = f"it keeps {size:.3g} B per value, but says `memory = {codec.memory:g}`"
    require(size <= codec.memory + SMALL / numel, told)
    again = fresh_states([np.zeros(0, np.float32)], 3, "w")[0] | kept
    for step in range(3, 6):
        state["step"] = again["step"] = step
        packets = [_bytes_of(codec.encode(values(step), one)) for one in (state, again)]
        require(packets[0] == packets[1], wrong)
    return "a checkpoint goes on to the same packets" if codec.stateful else "it keeps nothing"


def _feedback(codec: Codec) -> str:
    """Require over some steps that sent values plus the remainder are the sum of the gradients."""
    if not codec.feedback:
        raise Skipped("it has none")
    numel, group = 500, grid(1, 3)
    for name in (way for way in WAYS if not illegal(route(way, group), codec)):
        states = fresh_states([np.zeros(numel, np.float32) for _ in group.ranks], 3, "w")
        sent, total, largest = np.zeros(numel), np.zeros(numel), 0.0
        for step in range(4):
            for rank, state in enumerate(states):
                gradient = _normal(numel, 10 * step + rank)
                wanted = gradient + state.get("lost", np.float32(0))
                largest += float(np.abs(wanted).max())
                total += gradient
                state["gradient"][:], state["step"] = gradient, step
            run_method(Pair(name, codec.name), BucketSpec.uniform(numel), group, states)
            sent += states[0]["result"]
        left = np.sum([state["lost"] for state in states], axis=0, dtype=np.float64)
        off = float(np.abs(sent + left - total).max())
        slack = 8 * group.size * HALF_ULP * largest
        require(off <= slack, f"{name}: sent + left misses the sum of the gradients by {off:.3g}")
    return "sent + left = the sum of the gradients"


def _able(codec: Codec) -> list[str]:
    """Return the collectives that carry the codec, without MPI's own, whose rounds are hidden."""
    able = [name for name in COLLECTIVES if not illegal(route(name, grid(1, 4)), codec)]
    return [name for name in able if not route(name, grid(1, 4)).library]


def _ranks(codec: Codec) -> str:
    """Require that all ranks end with the sum in equal bits, for every suitable collective.

    The law of feedback, not this one, checks the sum of a codec that keeps a remainder.
    """
    able, group = _able(codec), grid(2, 2)
    gradients = [_normal(301, rank) for rank in group.ranks]
    alone = fresh_states([each.copy() for each in gradients], 3, "w")
    sent = [_decoded(codec, codec.encode(state["gradient"], state), 301) for state in alone]
    want, whole = np.sum(sent, axis=0, dtype=np.float64), sum(map(_size, gradients))
    lost = _off(_round_trip(codec, gradients[0]), gradients[0]) / _size(gradients[0])
    for name in able:
        states = fresh_states([each.copy() for each in gradients], 3, "w")
        run_method(Pair(name, codec.name), BucketSpec.uniform(301), group, states)
        first = states[0]["result"].view(np.uint32)
        same = all(np.array_equal(first, each["result"].view(np.uint32)) for each in states)
        require(same, f"{name}+{codec.name}: ranks end with different sums")
        if not (codec.votes or codec.feedback):
            hops = group.size if route(name, group).goal is Goal.ALL_REDUCE else 0  # that encode
            off = _off(states[0]["result"], want)
            near = off <= (hops * lost + ROUNDED) * whole
            require(near, f"{name}+{codec.name}: the sum is off by {off / whole:.3g} of the values")
    return f"all end with the same sum, by {', '.join(able)}"


def _bytes(codec: Codec) -> str:
    if not codec.fixed:
        raise Skipped("the size of a packet depends on its values")
    return prices.as_sent(Pair(way(codec), codec.name), [grid(1, 3), grid(2, 2)], 301)


def _price(codec: Codec, machine: Machine) -> str:
    return prices.compared(f"{way(codec)}+{codec.name}", machine)
