"""Whether the tests of this folder can run here."""

import pytest

from commsched.errors import CommschedError
from commsched.kernels.device import gpus


def needs_a_gpu() -> None:
    """Skip the module that calls it, and say why, where CuPy or a GPU is missing."""
    try:
        gpus()
    except CommschedError as error:
        pytest.skip(str(error), allow_module_level=True)
