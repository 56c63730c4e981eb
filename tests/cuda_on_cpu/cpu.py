"""The CUDA sources, compiled by g++ and run on NumPy's arrays, in place of CuPy's kernels."""

import ctypes
import mmap
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from commsched.kernels import compiled, device
from commsched.kernels.cuda import launch

HERE = Path(__file__).parent
# Undefined behaviour, an unaligned access say, ends the process.
OPTIONS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
]
GUARD = 64  # B before and behind each array, which no kernel may write
GARBAGE = 0xA5
SEEDS = count()
ALONE = Lock()  # a library has one set of threads, and several of ours may launch kernels

# Of tests that run kernels here: one process compiles them all.
MARKS = [
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="g++ is not installed, which compiles CUDA kernels here"
    ),
    pytest.mark.xdist_group("cuda on cpu"),
]


class Kernels:
    """The kernels of one library that `built` has made, as `cupy.RawModule` offers them."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.launch.restype = ctypes.c_char_p

    def get_function(self, name: str) -> Any:
        return lambda grid, block, given: self._run(name, grid, block, given)

    def _run(self, name: str, grid: tuple[int], block: tuple[int], given: tuple[Any, ...]) -> None:
        assert block == (launch.THREADS,)
        held = [Guarded(each) if is_array(each) else each for each in given]
        numbers = [np.array(each.address if is_array(at) else each)
                   for at, each in zip(given, held, strict=True)]  # fmt: skip
        values = (ctypes.c_void_p * len(held))(*(number.ctypes.data for number in numbers))
        types = "".join(written(each) + " " for each in given)
        seed = ctypes.c_uint64(next(SEEDS))
        with ALONE:
            wrong = self._library.launch(name.encode(), grid[0], types.encode(), values, seed)
        assert not wrong, f"{name}: {wrong.decode()}"
        for each in held:
            if isinstance(each, Guarded):
                assert each.is_whole(), f"{name} wrote beside an array"
                each.give_back()


class Guarded:
    """A copy of an array, aligned as it is, between bytes that nobody may write."""

    def __init__(self, given: Any) -> None:
        assert given.flags.aligned, "a device reads aligned numbers only"
        self._given = given
        # Of the system, so that who counts what Python and NumPy take does not count it.
        self._room = np.frombuffer(mmap.mmap(-1, given.nbytes + 3 * GUARD), np.uint8)
        self._room.fill(GARBAGE)
        self._start = GUARD + (given.ctypes.data - self._room.ctypes.data) % GUARD
        self._inside[:] = given.reshape(-1).view(np.uint8)
        self.address = np.uint64(self._inside.ctypes.data)

    @property
    def _inside(self) -> Any:
        return self._room[self._start : self._start + self._given.nbytes]

    def is_whole(self) -> bool:
        """Whether the bytes around it are as they were."""
        end = self._start + self._given.nbytes
        beside = np.concatenate([self._room[: self._start], self._room[end:]])
        return bool((beside == GARBAGE).all())

    def give_back(self) -> None:
        """Write what the kernel left to the array."""
        if self._given.flags.writeable:
            self._given[...] = self._inside.view(self._given.dtype).reshape(self._given.shape)


def is_array(given: Any) -> bool:
    return isinstance(given, np.ndarray)


def written(given: Any) -> str:
    """Type of an argument: i8, or *f4 for an array."""
    text = given.dtype.str[1:].replace("b", "u")
    return "*" * is_array(given) + text


def built(code: str) -> Path:
    """The shared library of a source."""
    table = "\n".join(f"LAUNCHABLE({name})" for name in re.findall(r"KERNEL (\w+)\(", code))
    tail = f"const std::vector<Kernel> kernels = {{\n{table}}};\n"
    folder = Path(tempfile.mkdtemp(dir=header()))
    (folder / "made.cpp").write_text(f'#include "grid.hpp"\n{code}\n{tail}')
    compiler("-I", str(header()), "-shared", "-o", "made.so", "made.cpp", folder=folder)
    return folder / "made.so"


@cache
def header() -> Path:
    """A folder with the header, read by the compiler once."""
    folder = Path(tempfile.mkdtemp())
    shutil.copy(HERE / "grid.hpp", folder)
    compiler("-x", "c++-header", "-o", "grid.hpp.gch", "grid.hpp", folder=folder)
    return folder


def compiler(*given: str, folder: Path) -> None:
    """Run g++ there."""
    subprocess.run(["g++", *OPTIONS, *given], cwd=folder, check=True)


@cache
def function(file: str, kernel: str) -> Any:
    """In place of `launch.function`."""
    return module(file).get_function(kernel)


@cache
def module(file: str) -> Kernels:
    """The kernels of `file`.cu."""
    return Kernels(built(launch.source(file)))


def garbage(*given: Any, **named: Any) -> np.ndarray:
    """np.empty, of bytes that no kernel means to write."""
    found = EMPTY(*given, **named)
    found.reshape(-1).view(np.uint8).fill(GARBAGE)
    return found


EMPTY = np.empty


@contextmanager
def kernels():
    """Treat NumPy's arrays as arrays of a GPU whose kernels this processor runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "on_gpu", is_array)
        patch.setattr(launch, "function", function)
        patch.setattr(compiled, "mode", lambda: "never")
        patch.setattr(np, "empty", garbage)
        yield
