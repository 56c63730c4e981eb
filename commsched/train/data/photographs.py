"""Patches of the two photographs that come with scikit-learn, for nets that reproduce them."""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError, install
from commsched.train.registry import DATA
from commsched.train.samples import FOLDS, Data, Samples, split

NAMES = ("china.jpg", "flower.jpg")  # 427 x 640 pixels each
SIDE, LEVELS = 8, 16  # pixels of a patch's side; grey levels that are told apart


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
    """Read an image without importing scikit-learn: (rows, columns) from 0 to 255."""
    from PIL import Image

    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise CommschedError(
            f"the photographs come with scikit-learn, which is not installed; {install('train')}"
        )
    path = Path(found.submodule_search_locations[0], "datasets", "images", name)
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("L"))
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error}") from None
