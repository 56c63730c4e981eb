"""What every kernel must compute: NumPy's bits. A module that runs these tests offers `both`.

`both(function)` gives what `function(put)` returns with NumPy, and with the kernels; `put` puts an
array where they work.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.kernels import accumulate as ways
from commsched.kernels import (
    bits,
    cuda,
    eightbit,
    half,
    hashing,
    lowrank,
    merge,
    pruned,
    rangefloat,
    rows,
    select,
    spectrum,
)
from commsched.kernels.device import device
from commsched.kernels.pruned import AdamConstants
from commsched.kernels.random import Dither

SIZES = (0, 1, 7, 8, 33, 255, 257, 8191, 8193, 20_000)
BROKEN = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, 2.0**-14, 65519.0)
floats = st.lists(
    st.one_of(st.floats(width=32), st.floats(width=16), st.sampled_from(BROKEN)), max_size=90
)
few = pytest.mark.parametrize("numel", SIZES)


def drawn(numel: int, odd: bool = True) -> np.ndarray:
    """Normal numbers, and among them those that are none."""
    rng = np.random.default_rng(numel)
    values = rng.standard_normal(numel).astype(np.float32)
    if odd and numel > 2:
        values[rng.integers(0, numel, len(BROKEN))] = BROKEN
    return values


def same(pair):
    """Arrays of equal bits, whatever a NaN carries."""
    first, second = pair
    if isinstance(first, (tuple, list)):
        assert len(first) == len(second)
        for each in zip(first, second, strict=True):
            same(each)
        return
    first, second = np.atleast_1d(first), np.atleast_1d(second)
    assert first.dtype == second.dtype
    if first.dtype.kind == "f":
        nan = first.dtype.type(np.nan)
        first, second = (np.where(np.isnan(each), nan, each) for each in (first, second))
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@few
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_halves_are_the_same_words_however_they_lie(both, numel, shift):
    values = drawn(numel + shift)
    words = np.random.default_rng(numel).integers(0, 2**16, numel + shift).astype(np.uint16)
    for narrow, widen in ((half.to_fp16, half.from_fp16), (half.to_bf16, half.from_bf16)):
        same(both(lambda put, narrow=narrow: narrow(put(values)[shift:])))
        same(both(lambda put, widen=widen: widen(put(words)[shift:])))


@given(values=floats, exponent=st.integers(-3, 20))
def test_rounding_is_the_same_for_any_number(both, values, exponent):
    values = np.array(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        same(both(lambda put: half.to_fp16(put(values))))
        same(both(lambda put: half.to_bf16(put(values))))
        for form in (eightbit.E4M3, eightbit.E5M2):
            same(both(lambda put, form=form: eightbit.narrow(put(values), form, 2.0**exponent)))
        for form in (rangefloat.up_to(10, 5, 1.0), rangefloat.from_least(8, 3, 1e-6)):
            same(both(lambda put, form=form: form.encode(put(values))))


def test_every_code_is_widened_to_the_same_number(both):
    codes = np.arange(2**16, dtype=np.uint16)
    same(both(lambda put: half.from_fp16(put(codes))))
    for form in (rangefloat.up_to(10, 5, 1.0), rangefloat.from_least(8, 3, 1e-6)):
        some = codes[: 2**form.bits]
        same(both(lambda put, form=form, some=some: form.decode(put(some))))
    every, out = np.arange(256, dtype=np.uint8), np.ones(256, np.float32)
    for name in ("fp8:e4m3", "fp8:e5m2:3"):
        same(both(lambda put, name=name: decoded(name, put(every), put(out))))


@few
def test_flags_places_and_ranks_are_the_same(both, numel):
    values = drawn(numel)
    for threshold in (0.0, 0.7, 99.0, np.inf):
        same(both(lambda put, t=threshold: select.above(put(values), t)))
    sparse = np.where(abs(values) < 1, np.float32(0), values)
    same(both(lambda put: select.set_apart(put(sparse))))
    for count in {0, 1, numel // 100, numel, numel + 1}:
        same(both(lambda put, c=count: np.float32(select.threshold_of(put(values), c))))


@few
def test_what_was_kept_is_added_and_looked_at_in_one_pass(both, numel):
    lost = np.random.default_rng(numel).standard_normal(numel).astype(np.float32)

    def summed(put, values, threshold):
        sums = put(values)
        index, whole = select.added_above(sums, put(lost), threshold)
        return index, np.bool_(whole), sums

    with np.errstate(over="ignore", invalid="ignore"):
        for odd in (False, True):
            for threshold in (0.0, 0.9, 99.0, np.inf):
                same(both(lambda put, o=odd, t=threshold: summed(put, drawn(numel, o), t)))


@pytest.mark.parametrize("numel", [1, 255, 5000])
def test_a_scan_makes_starts_of_counts(both, numel):
    counts = np.random.default_rng(numel).integers(0, 9, numel + 1).astype(np.uint32)

    def scanned(put):
        given = put(counts)
        if device(given) is None:
            given[:] = np.cumsum(counts) - counts
        else:
            cuda.select.scan(given)
        return given

    same(both(scanned))


@pytest.mark.parametrize("numel", [1, 300, 9000])
def test_of_equal_magnitudes_the_first_are_taken(both, numel):
    values = np.random.default_rng(1).choice([-2, -1, 0, 1, 2], numel).astype(np.float32)
    for count in (1, numel // 3 + 1):
        same(both(lambda put, c=count: select.largest(put(values), c)))


@pytest.mark.parametrize("numel", [0, 1, 9, 64, 2049])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 10, 16, 21, 32])
def test_codes_are_packed_to_the_same_bytes(both, numel, width):
    codes = np.random.default_rng(width).integers(0, 2**width, numel)
    for kind in (np.int64, *([np.uint8, np.uint16] if 1 < width <= 8 else [])):
        given = codes.astype(kind)
        packed = both(lambda put, given=given: bits.pack(put(given), width))
        same(packed)
        same(both(lambda put, packed=packed: bits.unpack(put(packed[0]), numel, width)))


@given(numel=st.integers(0, 600), shift=st.integers(0, 5), density=st.sampled_from([0, 0.02, 0.6]))
def test_bits_are_found_wherever_a_bitmap_begins(both, numel, shift, density):
    flags = np.random.default_rng(numel).random(numel) < density
    packed = np.concatenate([np.zeros(shift, np.uint8), np.packbits(flags, bitorder="little")])
    same(both(lambda put: bits.set_bits(put(packed)[shift:], numel)))


@given(
    flags=st.lists(st.integers(0, 255), max_size=300).map(lambda f: np.array(f, np.uint8)),
    shift=st.integers(0, 3),
)
def test_flags_are_packed_to_the_same_bytes(both, flags, shift):
    for kind in (np.uint8, np.bool_):
        given = flags.astype(kind)
        same(both(lambda put, given=given: bits.pack_flags(put(given)[shift:])))


@given(key=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(1, 700), min_size=1, max_size=3))
def test_random_numbers_are_the_same(both, key, sizes):
    def numbers(put):
        dither = Dither(key, max(sizes), put(np.zeros(1)))
        return [dither.next(put(np.empty(size, np.int32))) for size in sizes]

    same(both(numbers))


def decoded(name, packet, out):
    CODECS[name].decode(packet, out)
    return out


LEVELS = 13 * 2.0**-24  # of additions in a transform, each rounded by so much of the norm


@pytest.mark.parametrize("numel", [5, 8192, 20_001, 32_768])
def test_spectra_are_as_near_as_roundings_of_float32(both, numel):
    values, lost = (drawn(numel + more, odd=False)[:numel] for more in (0, 1))

    def transformed(put):
        sums = put(values)
        bins = spectrum.forward(sums, put(lost))
        return sums, bins, spectrum.forward(put(values))

    sums, bins, plain = zip(*both(transformed), strict=True)
    same(sums)
    for first, second in (bins, plain):
        assert np.linalg.norm(first - second) <= LEVELS * np.linalg.norm(first)


def spectra(kind, bins):
    rng = np.random.default_rng(bins)
    parts = rng.standard_normal(2 * bins).astype(np.float32)
    if kind == "equal":
        parts = rng.choice(np.array([-1, 1], np.float32), 2 * bins)
    if kind == "few":
        parts[rng.random(2 * bins) < 0.95] = 0
    if kind == "broken":
        parts[rng.integers(0, 2 * bins, len(BROKEN))] = BROKEN
    return parts.view(np.complex64)


@pytest.mark.parametrize("kind", ["normal", "equal", "few", "broken"])
@pytest.mark.parametrize("bins", [1, 33, 4097, 20_000])
def test_the_strongest_bins_are_coded_alike(both, kind, bins):
    form, given = rangefloat.up_to(10, 5, 1.0), spectra(kind, bins)
    for count in {1, bins // 7 + 1, bins}:

        def coded(put, count=count):
            return spectrum.strongest(put(given), count, form)

        with np.errstate(over="ignore", invalid="ignore"):
            same(both(coded))


@pytest.mark.parametrize("parts", [1, 2, 8, 255, 256, 257])
@pytest.mark.parametrize("numel", [0, 1, 2047, 2049, 9000])
def test_groups_are_the_same(both, numel, parts):
    index = np.arange(0, 7 * numel, 7)
    same(both(lambda put: tuple(hashing.grouped(put(index), parts))))


@given(numel=st.integers(0, 2000), parts=st.integers(1, 8), tries=st.integers(1, 5))
def test_hierarchical_hashing_places_alike_in_any_order_of_threads(both, numel, parts, tries):
    index = np.sort(np.random.default_rng(numel).choice(10**6, numel, replace=False))
    same(both(lambda put: tuple(hashing.placed(put(index), parts, tries))))


@given(
    numel=st.integers(1, 9000), density=st.sampled_from([0, 0.01, 0.3, 1]),
    ways=st.integers(2, 4), seed=st.integers(0, 9),
)  # fmt: skip
def test_lists_are_summed_to_the_same_bits(both, numel, density, ways, seed):
    rng = np.random.default_rng(seed)
    dense = rng.choice(np.array([-1.1, 0.3, 1.1, 1e8, np.inf], np.float32), (ways, numel))
    dense[rng.random((ways, numel)) > density] = 0

    def summed(put):
        return tuple(merge.merged([merge.listed(put(each)) for each in dense], numel))

    with np.errstate(invalid="ignore"):
        same(both(summed))


@pytest.mark.parametrize("way", [ways.REPLACE, ways.ADD, ways.TAKE_OFF])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(20_000,), (90, 256)])
def test_values_are_put_at_distinct_indices(both, shape, kind, way):
    out, rng = drawn(int(np.prod(shape))).reshape(shape), np.random.default_rng(1)
    for count in (0, 1, len(out) // 3, len(out)):
        index = rng.permutation(len(out))[:count].astype(kind)
        values = 1e-45 * np.ones((count, *shape[1:]), np.float32)  # lost where it is taken for 0

        def changed(put, index=index, values=values):
            found = put(out.copy())
            ways.put_at(put(index), put(values), found, way)
            return found

        with np.errstate(invalid="ignore"):
            same(both(changed))


@given(
    numel=st.integers(1, 3000), cols=st.integers(1, 90), rank=st.integers(1, 4),
    subtracted=st.booleans(),
)  # fmt: skip
def test_narrow_matrices_are_spread_to_the_same_bits(both, numel, cols, rank, subtracted):
    rows = -(-numel // cols)
    left, right = drawn(rows * rank).reshape(-1, rank), drawn(cols * rank).reshape(-1, rank)

    def product(put):
        out = put(np.ones(numel, np.float32))
        values = put(drawn(numel)) if subtracted else None
        lowrank.spread(put(left), put(right), out, values)
        return out

    with np.errstate(over="ignore", invalid="ignore"):
        same(both(product))


@pytest.mark.parametrize("numel", [1, 257, 5000])
def test_a_pruned_step_is_the_same(both, numel):
    rng = np.random.default_rng(numel)
    values = drawn(numel, odd=False)
    grads = (rng.standard_normal((2, numel)) * 1.5e4).astype(np.float16)
    grads[0, : numel // 9] = 6e4  # beyond the range where another is added
    grads[1] = abs(grads[1])
    index = pruned.largest(values, pruned.kept_of(numel, 0.4))

    def stepped(put):
        state = pruned.prune(put(values), put(index))
        for gradient in grads:
            pruned.pack(state, put(gradient))
        total = state.packed.astype(np.float32)
        total[~np.isfinite(total)] = 7
        part = slice(len(total) // 3, None)
        for steps in (1, 2):
            gradient = total[part].copy()
            pruned.update(state, part, gradient, 1024.0, steps, AdamConstants(rate=0.1))
        return state.packed, state.half, gradient, state.values, state.mean, state.square

    with np.errstate(over="ignore", invalid="ignore"):
        same(both(stepped))


@given(
    numel=st.integers(0, 90), width=st.integers(1, 9), table=st.integers(1, 30),
    kind=st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_rows_of_a_table_are_summed_to_the_same_bits(both, numel, width, table, kind):
    index = np.random.default_rng(numel).integers(0, table, numel).astype(kind)
    values = drawn(numel * width).reshape(numel, width)
    with np.errstate(over="ignore", invalid="ignore"):
        same(both(lambda put: rows.summed_rows(table, put(index), put(values))))
