"""Indices as a Bloom filter: `bloom:RATE[:POLICY]`, a codec, and an index code of others."""

import math

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.index import INDEX_CODES, IndexCode
from commsched.coding.packet import header
from commsched.coding.registry import CODECS
from commsched.coding.selection import Selection
from commsched.errors import CommschedError
from commsched.kernels.modules import module_of
from commsched.kernels.random import hashes
from commsched.kernels.select import nonzeros
from commsched.net.bucket import BucketSpec

HEADER = 32  # B: bits of the filter, indices found and selected, key of the draw; 64-bit words
CHUNK = 1 << 18  # elements that are tested at a time
SEED = 0x9E37_79B9_7F4A_7C15  # of the hash functions, equal on all ranks
POLICIES = ("p0", "p1", "p2")
MOST_BITS = 2**40  # of a filter in a valid packet


def filter_bits(count: float, rate: float) -> float:
    """Return the bits of a filter for `count` indices with a rate of false positives.

    -r ln(rate) / (ln 2)^2: 14.4 bits per index at 1e-3. Source: Bloom, CACM 13(7), 1970.
    """
    return -count * math.log(rate) / math.log(2) ** 2


class Bloom(IndexCode):
    """A filter names elements that may be selected; the reader also finds false positives.

    p0: the values of all found elements are sent, so no selected element is lost. p1: as many as
    were selected, drawn at random from the found elements. p2: as many, first the elements that
    share a bit of the filter with the fewest others, because an element alone at a bit is surely
    selected. p1 and p2 leave out some selected elements; error feedback keeps them. Every element
    of the run is tested: good if bytes are expensive and the run is short.
    Source: Xu et al., "DeepReduce", NeurIPS 2021, arXiv 2102.03112 (in its p2 conflict sets take
    turns at random; here the smallest set of an element decides).
    """

    encode_traffic = 250.0  # equivalent memory traffic of the time in NumPy
    decode_traffic = 250.0

    def __init__(self, rate: float, policy: str) -> None:
        self.name = f"bloom:{read.written(rate)}" + (f":{policy}" if policy != "p0" else "")
        self.lossless = policy == "p0"
        self._rate = rate
        self._policy = policy
        self._hashes = max(1, round(-math.log2(rate)))

    def encode(self, index: Array, numel: int, key: int) -> tuple[Array, Array]:
        module = module_of(index)
        size = max(8, 8 * math.ceil(filter_bits(len(index), self._rate) / 8))
        table = module.zeros(size, np.uint8)
        for number in range(self._hashes):
            table[self._places(index, number, size)] = 1
        positives = self._found(table, len(index), numel, key)
        head = header((size, len(positives), len(index), key), index)
        return module.concatenate([head, module.packbits(table, bitorder="little")]), positives

    def decode(self, part: Array, numel: int) -> Array:
        whole = len(part) >= HEADER
        size, found, count, key = part[:HEADER].view(np.uint64).tolist() if whole else (0,) * 4
        right = 8 <= size < MOST_BITS and size % 8 == 0 and len(part) == HEADER + size // 8
        if not right or not 0 <= count <= found <= numel:
            raise CommschedError(f"{len(part)} B are no Bloom filter coded {self.name!r}")
        table = module_of(part).unpackbits(part[HEADER:], bitorder="little")
        index = self._found(table, count, numel, key)
        if len(index) != found:
            raise CommschedError(
                f"a Bloom filter of {len(part)} B states {found} indices, but"
                f" {len(index)} are found"
            )
        return index

    def nbytes(self, count: Floats, numel: Floats) -> Floats:
        bits = filter_bits(1.0, self._rate) * np.asarray(count)
        return HEADER + np.maximum(1.0, np.ceil(bits / 8))

    def sent(self, count: Floats, numel: Floats) -> Floats:
        if not self.lossless:
            return count
        return count + (np.asarray(numel) - count) * self._false(np.asarray(count))

    def _false(self, count: Floats) -> Floats:
        """Return the false-positive rate of a filter of whole bytes with whole hash functions."""
        size = 8 * np.maximum(1.0, np.ceil(filter_bits(1.0, self._rate) * count / 8))
        return np.asarray(-np.expm1(-self._hashes * count / size)) ** self._hashes

    def _places(self, index: Array, number: int, size: int) -> Array:
        """Return the filter's bits for indices, by one of the hash functions."""
        key = SEED * (2 * number + 3) % 2**64
        return (hashes(key, index).astype(np.int64) * size) >> 32

    def _found(self, table: Array, count: int, numel: int, key: int) -> Array:
        """Return indices whose bits are all set, as many as the policy takes; ascending."""
        module = module_of(table)
        parts = [module.zeros(0, np.int64)]
        for first in range(0, numel if count else 0, CHUNK):
            index = module.arange(first, min(first + CHUNK, numel))
            for number in range(self._hashes):
                index = index[table[self._places(index, number, len(table))] != 0]
            parts.append(index)
        positives = module.concatenate(parts)
        return positives if self.lossless else self._chosen(positives, count, len(table), key)

    def _chosen(self, found: Array, count: int, size: int, key: int) -> Array:
        """Choose `count` of the found indices: at random, or the least contested first."""
        module = module_of(found)
        order = hashes(key, found).astype(
            np.int64
        )  # drawn anew in every step, so that no element is always left out
        if self._policy == "p2":
            places = [self._places(found, number, size) for number in range(self._hashes)]
            rivals = module.bincount(module.concatenate(places), minlength=size)  # at each bit
            least = rivals[places[0]]
            for others in places[1:]:
                least = module.minimum(least, rivals[others])
            order += least << 32
        return module.sort(found[module.argsort(order)[:count]])


@INDEX_CODES.family("bloom:0.001")
def bloom(parameters: list[str]) -> Bloom:
    """Read RATE and POLICY."""
    read.at_most(parameters, 2)
    rate = read.share(parameters[0], "the rate of false positives")
    if not 1e-9 <= rate <= 0.5:
        raise CommschedError(
            f"the rate of false positives must be in [1e-9, 0.5], got {parameters[0]!r}"
        )
    policy = parameters[1] if len(parameters) > 1 else "p0"
    return Bloom(rate, read.choice(policy, "the policy", POLICIES))


class Filtered(Selection):
    """All non-zeros, their indices as a Bloom filter.

    p0 is lossless, and its packets add: it sends zeros for false positives. p1 and p2 send as many
    values as there are non-zeros, including false positives; error feedback keeps the rest.
    """

    standard = "bloom:0.001"
    composes = False
    add_traffic = 3000.0  # every element of the run is tested; few elements have bytes here

    def __init__(self, code: IndexCode) -> None:
        super().__init__(code.name)
        self._index = code
        self.lossless = self.addable = code.lossless
        self.feedback = not code.lossless
        self.encode_traffic = 1.0 + code.encode_traffic  # one scan
        self.decode_traffic = 1.0 + code.decode_traffic

    def select(self, values: Array, state: State, start: int) -> Array:
        return nonzeros(values)

    def kept(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(spec.nonzeros(start, stop, merged))


@CODECS.family(Filtered.standard)
def filtered(parameters: list[str]) -> Filtered:
    """Read RATE and POLICY."""
    return Filtered(bloom(parameters))
