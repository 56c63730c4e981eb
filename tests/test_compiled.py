"""The compiled extra computes the same bits as NumPy, for every kernel and every codec."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.codecs import elias
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.kernels import bits, compiled, half, lowrank, merge, quantise, select
from commsched.kernels.random import Dither
from tests.test_codecs_lossy import LOSSY, ODD

pytest.importorskip("numba", reason="the compiled extra is not installed: commsched[fast]")

floats = st.lists(
    st.one_of(st.floats(width=32), st.floats(width=16), st.floats(-(2.0**-13), 2.0**-13, width=32)),
    max_size=90,
)
seeds = st.integers(0, 9)


@pytest.fixture(scope="module")
def switched():
    """Run a function with NumPy and with the compiled kernels: both results."""

    def both(function):
        found = []
        for mode in ("never", "always"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(compiled, "mode", lambda mode=mode: mode)
                found.append(function())
        return found

    return both


def same_bits(first, second):
    first, second = (np.asarray(each).reshape(-1).view(np.uint8) for each in (first, second))
    np.testing.assert_array_equal(first, second)


def test_what_drives_exchanges_is_loaded_before_the_first():
    pytest.importorskip("mpi4py", reason="needs commsched[mpi]")
    code = (
        "from commsched.run.engine.prepare import driver; driver();"
        "from commsched.kernels.fast_exchange import drive;"
        "print(len(drive.nopython_signatures))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@given(
    numel=st.integers(0, 700),
    density=st.sampled_from([0, 0.01, 0.03, 0.09, 0.3, 0.99, 1]),
    beyond=st.integers(0, 20),
    seed=seeds,
)
def test_places_of_bits_are_the_same(switched, numel, density, beyond, seed):
    flags = np.random.default_rng(seed).random(numel + beyond) < density
    packed, places = bits.pack_flags(flags), np.flatnonzero(flags[:numel])
    for found in switched(lambda: bits.set_bits(packed, numel)):
        np.testing.assert_array_equal(found, places)
    for found in switched(lambda: bits.set_flags(flags[:numel])):
        np.testing.assert_array_equal(found, places)


@given(values=floats)
def test_halves_are_the_same_words(switched, values):
    values = np.array(values, np.float32)
    same_bits(*switched(lambda: half.to_fp16(values)))
    # NaN of bfloat16 has one word; its payload is not kept
    same_bits(*switched(lambda: half.to_bf16(values)))


def test_every_half_is_widened_to_the_same_number(switched):
    words = np.arange(2**16, dtype=np.uint16)
    number = ~np.isnan(words.view(np.float16))
    same_bits(*(found[number] for found in switched(lambda: half.from_fp16(words))))
    assert all(np.isnan(found[~number]).all() for found in switched(lambda: half.from_fp16(words)))


@given(values=floats)
def test_halves_of_training_have_the_bits_of_numpy(switched, values):
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array(values, np.float32)
        some = values.astype(np.float16)
        for found in switched(lambda: half.narrowed(values)):
            same_bits(found, some)
        for found in switched(lambda: half.half_sum(some, some[::-1])):
            same_bits(found, some + some[::-1])


def test_halves_of_training_keep_their_shape_and_order(switched):
    words = np.arange(2**16, dtype=np.uint16)
    every = words[~np.isnan(words.view(np.float16))].view(np.float16)[:63488].reshape(256, 248)
    for values in (every, every.T, every[::2], every[:0]):
        for found in switched(lambda values=values: half.widened(values)):
            np.testing.assert_array_equal(found, values.astype(np.float32))
            assert not found.size or found.strides == values.astype(np.float32).strides
        wide = values.astype(np.float32)
        for found in switched(lambda wide=wide: half.narrowed(wide)):
            same_bits(found, values)


@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 70),
    rank=st.integers(1, 4),
    short=st.integers(0, 69),
)
def test_narrow_matrices_spread_to_the_same_bits(switched, rows, cols, rank, short):
    rng = np.random.default_rng([rows, cols, rank])
    left, right, values = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, rank), (cols, rank), rows * cols - min(short, cols - 1))
    )

    def spread(values):
        out = np.empty(rows * cols - min(short, cols - 1), np.float32)
        lowrank.spread(left, right, out, values)
        return out

    same_bits(*switched(lambda: spread(None)))
    same_bits(*switched(lambda: spread(values)))


@given(key=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(1, 99), min_size=1, max_size=4))
def test_random_numbers_are_the_same(switched, key, sizes):
    def drawn():
        dither = Dither(key, max(sizes), np.zeros(1))
        return np.concatenate([dither.next(np.empty(size, np.int32)) for size in sizes])

    same_bits(*switched(drawn))


@given(key=st.none() | st.integers(0, 2**64 - 1), rows=st.integers(1, 4), width=st.integers(1, 70))
def test_steps_are_the_same(switched, key, rows, width):
    rng = np.random.default_rng([rows, width])
    values = rng.standard_normal((rows, width)).astype(np.float32)
    low = values.min(axis=1, keepdims=True)
    inverse = (200 * quantise.UNITS / np.ptp(values, axis=1, keepdims=True).clip(1e-3)).astype("f4")
    inverse[0] = np.nan if width % 2 else 0

    def numbers():
        return quantise.EvenSteps(key, rows * width, values).numbers(values, low, inverse)

    with np.errstate(invalid="ignore"):
        same_bits(*switched(numbers))


@given(numel=st.integers(4000, 20000), threshold=st.sampled_from([0.0, 0.5, 3.0, 9.0]), seed=seeds)
def test_the_largest_of_many_are_the_same(switched, numel, threshold, seed):
    values = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
    values[seed] = np.nan
    same_bits(*switched(lambda: select.above(values, threshold)))


@given(values=floats, threshold=st.sampled_from([0.0, 1e-6, 0.5, 3.0, np.inf]))
def test_the_largest_are_the_same(switched, values, threshold):
    values = np.array(values, np.float32)
    same_bits(*switched(lambda: select.above(values, threshold)))


@given(
    numel=st.integers(1, 900), densities=st.lists(st.sampled_from([0, 0.003, 0.1, 1]), min_size=1),
    seed=seeds,
)  # fmt: skip
def test_lists_have_the_same_sums(switched, numel, densities, seed):
    rng = np.random.default_rng(seed)
    rows = [
        np.where(rng.random(numel) < density, rng.choice([-1, 0.3, 1, 1e9], numel), 0)
        for density in densities
    ]
    lists = [merge.listed(row.astype(np.float32)) for row in rows]
    for join in (0, 10**9):  # join lists, collect them
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "JOIN", join)
            (index, values), (again, sums) = switched(lambda: merge.merged(lists, numel))
        np.testing.assert_array_equal(index, again)
        same_bits(values, sums)


@given(
    numel=st.integers(1, 5000), share=st.floats(0, 1), spread=st.floats(0, 1), seed=seeds,
    narrow=st.booleans(),
)  # fmt: skip
def test_lists_are_coded_alike_and_broken_ones_refused_alike(
    switched, numel, share, spread, seed, narrow
):
    rng = np.random.default_rng(seed)
    within = max(1, int(spread * numel))  # all indices may lie in the run's first part
    index = np.flatnonzero(rng.random(within) < share)
    values = rng.standard_normal(len(index)).astype(np.float32)
    values *= rng.choice([1, 1e-6], len(index), p=[0.9, 0.1]).astype(np.float32)
    one, two = switched(lambda: elias.pack_list(index, values, numel, narrow))
    same_bits(one, two)

    def opened():
        try:
            found, values = elias.open_list(one, numel)
        except CommschedError as error:
            return str(error)
        return np.arange(numel)[found].tolist(), values.tobytes()

    assert len({repr(found) for found in switched(opened)}) == 1
    one[rng.integers(len(one), size=2)] ^= np.uint8(1 << rng.integers(8))
    assert len({repr(found) for found in switched(opened)}) == 1


@pytest.mark.parametrize("name", [*dict.fromkeys([*CODECS, *LOSSY])])
def test_a_codec_writes_and_reads_the_same_packets(switched, name):
    rng = np.random.default_rng(4)
    odd = [*ODD.values(), (rng.standard_normal(70_001) * 1e-3).astype(np.float32)]
    broken = rng.standard_normal(5000).astype(np.float32)
    broken[[7, 2100]] = np.nan, np.inf
    state = {"seed": 3, "step": 1, "rank": 2, "name": "w"}

    def coded(values):
        packet = CODECS[name].encode(values, dict(state)).copy()
        out = np.ones_like(values)
        CODECS[name].decode(packet, out)
        CODECS[name].add(packet, out)
        return np.concatenate([packet.view(np.uint8), out.view(np.uint8)])

    for values in [*odd, broken]:
        with np.errstate(over="ignore"):
            same_bits(*switched(lambda values=values: coded(values)))


def test_long_runs_only_load_the_extra_and_the_environment_can_forbid_it():
    code = (
        "import sys, numpy as np\nfrom commsched.coding.registry import CODECS\n"
        "state = {'seed': 0}\n"
        "for numel in (1000, 10**5):\n"
        "    CODECS['quant:8'].encode(np.ones(numel, np.float32), state)\n"
        "    print('numba' in sys.modules)\n"
    )

    def loaded(**environment):
        without = {k: v for k, v in os.environ.items() if k != compiled.SWITCH}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=without | environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert loaded() == ["False", "True"]
    assert loaded(COMMSCHED_COMPILED="always") == ["True", "True"]
    assert loaded(COMMSCHED_COMPILED="never") == ["False", "False"]


def test_a_wrong_word_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, "yes")
    with pytest.raises(CommschedError, match="must be one of auto, always, never; got 'yes'"):
        compiled.mode.__wrapped__()
