"""How far lossy codecs err: a bound for each that is there, and no bias where they say so."""

import numpy as np
import pytest

from commsched.codecs.adaqp import BLOCK
from commsched.coding.bit_assignment import WIDTHS, assigned, units_of
from commsched.coding.registry import CODECS
from tests.support.packets import round_trip
from tests.test_codecs_lossy import LOSSY

# Three blocks of the widest, the last one short, of different size.
SIZES = np.repeat(np.float32([1, 100, 1e-4]), [2048, 2048, 600])
NUMEL = len(SIZES)


def gradient(seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32) * SIZES
    values[::50] = 0
    return values


def energy(values) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def blocks(values, width):
    return [values[at : at + width].astype(np.float64) for at in range(0, len(values), width)]


# --- Bounds: |x - decoded|^2 of one packet, in terms of x. ---


def rounded(relative, least):
    """To nearest, with a smallest number beside zero."""
    return lambda x, _: energy(relative * np.abs(x) + least)


def largest(x, parameters):
    """The rest of k elements holds at most what as many of a mean size do."""
    share, way = float(parameters[0]), (*parameters, "")[1]
    fewest = 1.0 if way in ("", "exact", "bisect") else 0.5  # else the exact ones are taken
    return (1 - fewest * np.ceil(share * len(x)) / len(x)) * energy(x)


def levels(width, count):
    """Less than one level of its block for each value, of a scale 2**-20 larger."""
    return lambda x, _: sum(
        len(block) * (np.abs(block).max() * (1 + 2.0**-19) / count) ** 2
        for block in blocks(x, width)
    )


def even(x, parameters):
    """Less than a step of its block for each value, half of one to nearest."""
    part = 0.5 if "nearest" in parameters else 1.0
    width = int((*parameters[1:], "nearest")[0].replace("nearest", "2048"))
    steps = [np.ptp(block) / (2 ** int(parameters[0]) - 1) for block in blocks(x, width)]
    return sum(
        len(block) * (part * step * (1 + 1e-4)) ** 2
        for block, step in zip(blocks(x, width), steps, strict=True)
    )


def by_variance(x, parameters):
    """Less than a step of its block for each value, in the bits of the block."""
    whole = len(x) // BLOCK * BLOCK
    spread = np.ptp(x[:whole].reshape(-1, BLOCK), axis=1).astype(np.float64)
    found = assigned(spread, units_of(len(spread), int(parameters[0])))
    steps = spread / (2.0 ** np.array(WIDTHS)[found] - 1)
    tail = np.ptp(x[whole:]) / (2 ** (2 if int(parameters[0]) < 4 else 4) - 1)
    return (BLOCK * energy(steps) + (len(x) - whole) * tail**2) * (1 + 1e-4) ** 2


def means(x, by_sign):
    """What means of magnitudes leave: the variance in each block, or in each of its signs."""
    total = 0.0
    for block in blocks(x, 2048):
        parts = [block[block < 0], block[block >= 0]] if by_sign else [np.abs(block)]
        total += sum(len(part) * part.var() for part in parts if len(part))
    return total * (1 + 1e-6)


def spectrum(x, parameters):
    """As of the largest bins, and 5 bits of mantissa; x is rounded to fp16 before."""
    bits = 2.0**-12 + 2.0**-22
    return (1 - float(parameters[0])) * energy(x) + bits * energy(x) + len(x) * 2.0**-48


def places(x, parameters):
    """Elements that are not drawn; as many times as large as places are rare."""
    share = float(parameters[0])
    most = 1.0 if "unbiased" not in parameters else np.ceil(1 / share) - 1
    return max(most, 1.0) ** 2 * energy(x)


def whole(x, _):
    return energy(x)


BOUNDS = {
    "fp16": rounded(2.0**-11, 2.0**-25),
    "bf16": rounded(2.0**-8, 2.0**-134),
    "fp8": lambda x, p: rounded(2.0**-4, 2.0**-10)(x, p) if "e4m3" in p else e5m2(x, p),
    "topk": largest,
    "dgc": lambda x, p: largest(x, [p[0], "sampled"]),
    "threshold": lambda x, p: len(x) * float(p[0]) ** 2,
    "randomk": places,
    "qsgd": lambda x, p: levels(512, 2 ** (int(p[0]) - 1) - 1)(x, p),
    "terngrad": levels(2048, 1),
    "quant": even,
    "adaqp": by_variance,
    "sign": lambda x, _: means(x, by_sign=False),
    "onebit": lambda x, _: means(x, by_sign=True),
    "fft": spectrum,
    "fit": whole,  # least squares: the curve that is zero is among those that are tried
    "bloom": whole,
}
e5m2 = rounded(2.0**-3, 2.0**-17)


def bound(name, x):
    """A composed codec errs by what its selection leaves, and by its values' error on the rest."""
    if name.endswith(":feedback"):
        inner = name.removesuffix(":feedback")
        return max(bound(inner, x), energy(x) if CODECS[inner].unbiased else 0.0)
    first, *rest = name.split("/")
    if any(":p1" in part or ":p2" in part for part in rest):
        return whole(x, [])  # gives up some of the selected
    family, *parameters = first.split(":")
    found = BOUNDS[family](x, parameters)
    values = [part for part in rest if not part.startswith("bloom")]
    if values:
        kept = round_trip(first, x)
        found += bound(values[0], x[kept != 0])
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_codec_errs_within_its_bound(name, seed):
    x = gradient(seed)
    if name.startswith("fp8"):
        x = np.clip(x, -400, 400)  # e4m3 ends at 448
        x = np.clip(x, -20, 20) if name.startswith("fp8:e4m3:4") else x
    error = energy(round_trip(name, x).astype(np.float64) - x)
    assert error <= bound(name, x) * (1 + 1e-6)


# --- Rounding at random: the variances of the papers. ---

LEVELS = {f"qsgd:{bits}": (512, 2 ** (bits - 1) - 1) for bits in range(2, 9)}
LEVELS["terngrad"] = (2048, 1)
DRAWS = 300


def draws(name, x):
    """What some steps decode to: (DRAWS, n)."""
    codec, out = CODECS[name], np.empty((DRAWS, len(x)), np.float32)
    for step, decoded in enumerate(out):
        codec.decode(codec.encode(x, {"seed": 7, "step": step, "rank": 1, "name": "w"}), decoded)
    return out


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", LEVELS)
def test_levels_have_the_variance_of_rounding_at_random_and_of_the_papers(name):
    """Alistarh et al., lemma 3.1: |x|^2 min(n / s^2, sqrt(n) / s); Wen et al.: max |x| |x|_1."""
    width, count = LEVELS[name]
    x = gradient()
    error = np.square(draws(name, x).astype(np.float64) - x)
    for at, block in zip(range(0, NUMEL, width), blocks(x, width), strict=True):
        squares = error[:, at : at + width].sum(axis=1)
        level = np.abs(block).max() / count
        part = np.abs(block) / level % 1.0
        known = level**2 * np.sum(part * (1 - part))
        # Six standard errors of 300 steps: a right codec fails once in 10^8 seeds. 1e-3: 16-bit
        # random numbers, and a scale that is 2**-20 larger.
        slack = 6 * squares.std(ddof=1) / np.sqrt(DRAWS) + 1e-3 * known
        assert abs(squares.mean() - known) <= slack
        n = len(block)
        assert known <= energy(block) * min(n / count**2, np.sqrt(n) / count)
        if name == "terngrad":
            second = known + energy(block)
            assert second == pytest.approx(np.abs(block).max() * np.abs(block).sum(), rel=1e-9)


@pytest.mark.parametrize("name", LEVELS)
def test_a_value_lands_on_one_of_the_two_levels_beside_it(name):
    width, count = LEVELS[name]
    x = gradient()
    got = round_trip(name, x)
    for before, after in zip(blocks(x, width), blocks(got, width), strict=True):
        level = np.abs(before).max() / count
        assert (np.abs(after - before) < level * (1 + 1e-5)).all()  # scales are 2**-20 larger
        whole_ones = after / level
        assert np.abs(whole_ones - np.rint(whole_ones)).max() < count * 2.0**-19
        if name == "terngrad":
            assert set(np.rint(whole_ones).tolist()) <= {-1.0, 0.0, 1.0}


UNBIASED = {
    *(name for name in LOSSY if CODECS[name].unbiased),
    *LEVELS,
    *(f"quant:{bits}" for bits in (1, 2, 4, 8)),
    "adaqp:6",
    *(f"randomk:{share}:unbiased" for share in (0.01, 0.05, 0.3, 0.7, 1)),
}


@pytest.mark.by_day(7)
@pytest.mark.parametrize("name", sorted(UNBIASED))
def test_there_is_no_bias_along_a_gradient_its_signs_or_its_mean(name):
    """Beside the exam of single values: what all have in common, such as shrinking, adds up."""
    assert CODECS[name].unbiased
    x = gradient() / SIZES
    error = draws(name, x).astype(np.float64) - x
    for direction in (x.astype(np.float64), np.sign(x), np.ones(NUMEL)):
        along = error @ direction
        # Six standard errors of 300 steps: once in 10^8 seeds for each; 2**-17 of a level, which is
        # at most 8, is what 16-bit random numbers are off.
        slack = 6 * along.std(ddof=1) / np.sqrt(DRAWS) + 2.0**-17 * 8 * np.abs(direction).sum()
        assert abs(along.mean()) <= slack


def test_only_codecs_that_round_or_draw_at_random_say_that_they_are_unbiased():
    families = {name.partition(":")[0] for name in UNBIASED}
    assert families == {"adaqp", "qsgd", "quant", "terngrad", "randomk"}
    assert not any(CODECS[name].unbiased for name in ("randomk:0.3", "quant:8:nearest"))
