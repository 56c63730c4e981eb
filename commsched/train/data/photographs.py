"""Patches of the two photographs that come with scikit-learn, for nets that reproduce them."""

from functools import lru_cache

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.train.registry import DATA
from commsched.train.samples import FOLDS, Data, Samples, scikit_learn, split

NAMES = ("china.jpg", "flower.jpg")  # 427 x 640 pixels each
SIDE, LEVELS = 8, 16  # pixels per side of a patch; number of grey levels


@DATA.add("photographs")
def photographs(fold: int) -> Data:
    """Load grey pixels in [0, 1], (m, 64) float32, and their levels, (m, 64) whole numbers.

    Patches do not overlap; every fifth is held out.
    Source: the images of sklearn.datasets.load_sample_images.
    """
    pixels = np.concatenate([_patches(_grey(name)) for name in NAMES])
    samples = Samples(
        pixels.astype(np.float32) / np.float32(255),
        pixels.astype(np.int64) * LEVELS // 256,
    )
    return split(samples, np.arange(len(samples)) % FOLDS == fold)


def _patches(image: Array) -> Array:
    """Cut an image into whole patches, row by row: (m, SIDE * SIDE)."""
    rows, columns = (size // SIDE for size in image.shape)
    whole = image[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE)
    return whole.swapaxes(1, 2).reshape(-1, SIDE * SIDE)


@lru_cache(maxsize=2)
def _grey(name: str) -> Array:
    """Read an image: (rows, columns) from 0 to 255."""
    from PIL import Image

    path = scikit_learn("photographs", f"datasets/images/{name}")
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("L"))
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error}") from None
