"""Compile CUDA sources for the GPU in use at their first use, and cache the machine code.

CuPy's RawModule compiles with -ftz=true: numbers below 2^-126 would become zero, unlike NumPy's.
So this file calls NVRTC itself, and CuPy loads the result.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from commsched import files

# NumPy rounds a product before it adds to it.
OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false")
FOLDER = "CUPY_CACHE_DIR"  # where CuPy keeps what it compiles


def machine_code(name: str, code: str) -> Path:
    """Return a file in CuPy's folder that the driver loads; compiler errors show `name`."""
    import cupy
    from cupy.cuda import nvrtc

    number = str(cupy.cuda.Device().compute_capability)  # such as 90
    known = nvrtc.getSupportedArchs()
    # For a GPU newer than the compiler: PTX, which the driver translates.
    older = max((each for each in known if each <= int(number)), default=min(known))
    form, kind = ("cubin", f"sm_{number}") if older == int(number) else ("ptx", f"compute_{older}")
    options = (f"-arch={kind}", *OPTIONS)
    text = "\0".join((code, *options, *map(str, nvrtc.getVersion())))
    folder = Path(os.environ.get(FOLDER) or Path.home() / ".cupy" / "kernel_cache")
    path = folder / f"commsched-{name}-{hashlib.sha256(text.encode()).hexdigest()}.{form}"
    if not path.exists():
        files.make_folder(folder)
        files.write_bytes(path, compiled(nvrtc, name, code, options, form))
    return path


def compiled(nvrtc: Any, name: str, code: str, options: tuple[str, ...], form: str) -> bytes:
    """Compile a source by CuPy's binding of NVRTC to "cubin" or "ptx"."""
    program = nvrtc.createProgram(code, f"{name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        made: bytes = nvrtc.getCUBIN(program) if form == "cubin" else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise AssertionError(f"{name}.cu: {nvrtc.getProgramLog(program) or error}") from error
    finally:
        nvrtc.destroyProgram(program)
    return made
