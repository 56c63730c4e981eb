"""Compile the CUDA sources beside this file, each when first used, and launch their kernels."""

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.compile import machine_code

THREADS = 256  # of every block
MOST = 1 << 16  # blocks of a grid whose threads stride over the elements
COMMON = "common.cuh"


def start(file: str, kernel: str, blocks: int, *given: Array | np.generic) -> None:
    """Start a kernel of `file`.cu on the current stream: arrays and NumPy's numbers, in order.

    An array must be contiguous. A number must have the width of the kernel's parameter, because
    nothing converts it. Without blocks nothing is started.
    """
    for each in given:
        assert isinstance(each, np.generic) or each.flags.c_contiguous, f"{kernel}: {type(each)}"
    if blocks:
        function(file, kernel)((blocks,), (THREADS,), given)


def strides(numel: int, each: int = 1) -> int:
    """Return the blocks for `numel` elements, `each` of them handled by a thread at once."""
    return min(-(-numel // (each * THREADS)), MOST)


def array_module() -> Any:
    """Return CuPy's module."""
    import cupy

    return cupy


@cache
def function(file: str, kernel: str) -> Any:
    """Return a kernel of `file`.cu, compiled for the first GPU that this process uses."""
    return module(file).get_function(kernel)


@cache
def module(file: str) -> Any:
    """Return the kernels of `file`.cu."""
    return array_module().RawModule(path=str(machine_code(file, source(file))))


def source(file: str) -> str:
    """Return the CUDA C++ of `file`.cu with the common header inserted, for CuPy's cache."""
    here = files(__package__)
    text, common = (here.joinpath(name).read_text() for name in (f"{file}.cu", COMMON))
    return text.replace(f'#include "{COMMON}"', common)


def sources() -> list[str]:
    """Return the names of all CUDA sources, without suffix."""
    names = (each.name for each in files(__package__).iterdir())
    return sorted(name.removesuffix(".cu") for name in names if name.endswith(".cu"))
