"""Compile CUDA C++ for a GPU that is not there: NVIDIA's runtime compiler, called by ctypes.

The wheels nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12 bring the library alone. CUDA 13
has dropped GPUs below sm_75.
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

OLD = "are deprecated and may be removed"  # of NVRTC 12.9, about sm_70
PLACES = ("cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13")  # in the package `nvidia`


def libraries() -> dict[str, Path]:
    """The compilers that are installed, by their file name."""
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or []) if found else []
    paths = [Path(folder) / place for folder in folders for place in PLACES]
    return {path.name: path for path in paths if path.exists()}


def cubin(library: Path, code: str, architecture: str, options: Sequence[str]) -> bytes:
    """Machine code for an architecture such as sm_70; the compiler's log where there is none."""
    nvrtc, program = loaded(library), ctypes.c_void_p()
    wanted = [f"--gpu-architecture={architecture}", *options]
    given = (ctypes.c_char_p * len(wanted))(*(each.encode() for each in wanted))
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), None, 0, None, None) == 0
    status = nvrtc.nvrtcCompileProgram(program, len(wanted), given)
    log = text(nvrtc, program, "ProgramLog").decode(errors="replace")
    log = "\n".join(line for line in log.strip("\0\n").split("\n") if OLD not in line)
    assert status == 0, f"{architecture}: {log or nvrtc.nvrtcGetErrorString(status)}"
    assert not log, f"{architecture}: {log}"
    made = text(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return made


def text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """One of the program's results: its size is asked for first."""
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    held = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, held) == 0
    return held.raw


@cache
def loaded(library: Path) -> ctypes.CDLL:
    """The library; its error texts are C strings."""
    nvrtc = ctypes.CDLL(str(library))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc
