"""Types of arrays: `Array` may lie on a device, the others are NumPy's."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = Any  # a NumPy or CuPy array; functions on it use the array's own module
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Times = TypeVar("Times", Floats, float)  # s of many columns, or of one
