"""1797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

import gzip
from functools import lru_cache

import numpy as np

from commsched.errors import CommschedError
from commsched.train.registry import DATA
from commsched.train.samples import FOLDS, Data, Samples, scikit_learn, split

FILE = "datasets/data/digits.csv.gz"  # 64 pixels and the digit, a line each
LARGEST = 16  # of a pixel


@DATA.add("digits")
def digits(fold: int) -> Data:
    """Load pixels in [0, 1], (m, 64) float32, and digits, (m,); every fifth is held out.

    Source: Alpaydin & Kaynak, "Optical recognition of handwritten digits", UCI, 1998, its test set.
    """
    samples = _read()
    return split(samples, np.arange(len(samples)) % FOLDS == fold)


@lru_cache(maxsize=1)
def _read() -> Samples:
    path = scikit_learn("digits", FILE)
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, np.float32, delimiter=",")
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error}") from None
    return Samples(table[:, :-1] / np.float32(LARGEST), table[:, -1].astype(np.int64))
