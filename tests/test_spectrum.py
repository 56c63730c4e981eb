"""Spectra in pieces: their transforms, which bins are kept, and what they take of memory."""

import numpy as np
import pytest

from commsched.kernels import rangefloat, spectrum
from commsched.kernels.spectrum import fast_length

PIECE = spectrum.PIECE
FORM = rangefloat.up_to(10, 5, 1.0)


def halves(numel: int) -> np.ndarray:
    """Normal numbers that fp16 holds."""
    drawn = np.random.default_rng(numel).standard_normal(numel)
    return drawn.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    "numel", [0, 1, 999, PIECE - 1, PIECE, PIECE + 7, 20 * PIECE, 9 * PIECE + 1]
)
def test_a_run_is_transformed_piece_by_piece(numel):
    values = halves(numel)
    bins = spectrum.forward(values.copy())
    assert len(bins) == spectrum.bins_of(numel)
    rest = numel % PIECE
    parts = [np.fft.rfft(piece) for piece in np.float64(values[: numel - rest]).reshape(-1, PIECE)]
    if rest:
        parts.append(np.fft.rfft(np.float64(values[numel - rest :]), fast_length(rest)))
    for wanted, found in zip(parts, np.split(bins, np.cumsum([*map(len, parts)])), strict=False):
        # 13 levels of additions, each rounded by 2^-24 of the norm
        assert np.linalg.norm(found - wanted) <= 13 * 2.0**-24 * np.linalg.norm(wanted)


@pytest.mark.parametrize("count", [1, 300, 4000])
def test_no_bin_that_is_kept_is_weaker_than_one_that_is_not(count):
    bins = spectrum.forward(halves(PIECE))
    scale, bitmap, codes = spectrum.strongest(bins, count, FORM)
    kept = np.unpackbits(bitmap, bitorder="little")[: len(bins)].view(np.bool_)
    size = np.abs(bins)
    assert kept.sum() == count
    assert size[kept].min() >= size[~kept].max() * (1 - 2.0**-22)
    assert scale[0] == pytest.approx(size.max(), rel=2.0**-22)
    parts = FORM.decode(codes) * scale[0]
    assert np.abs(parts - bins[kept].view(np.float32)).max() <= 2.0**-6 * scale[0]
