"""Measure seconds and memory of work on a GPU, and describe the GPU."""

import re
from collections.abc import Callable
from pathlib import Path

import cupy

DRIVER = Path("/proc/driver/nvidia/version")


def seconds(work: Callable[[], object]) -> float:
    """Return seconds between events around work on the current stream; earlier work is done."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3


def extra_bytes(work: Callable[[], object]) -> int:
    """Return the bytes that CuPy's pool allocates for the work in addition to its current ones.

    An upper bound of the peak, because the pool may hold free memory.
    """
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    held = int(pool.total_bytes())
    work()
    return int(pool.total_bytes()) - held


def give_back() -> None:
    """Return free memory of CuPy's pool to the device."""
    cupy.get_default_memory_pool().free_all_blocks()


def versions() -> dict[str, str]:
    """Return the GPU, its driver, and the CUDA parts that were used."""
    runtime, device = cupy.cuda.runtime, cupy.cuda.Device()
    found = runtime.getDeviceProperties(device.id)
    return {
        "gpu": found["name"].decode(),
        "memory": f"{found['totalGlobalMem'] / 1e9:.1f} GB",
        "capability": str(device.compute_capability),
        "driver": _driver(),
        "driver's CUDA": str(runtime.driverGetVersion()),
        "CUDA": str(runtime.runtimeGetVersion()),
        "NVRTC": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "CuPy": cupy.__version__,
    }


def _driver() -> str:
    """Return the version of NVIDIA's driver, as its kernel module says it."""
    try:
        text = DRIVER.read_text()
    except OSError:
        return "unknown"
    number = re.search(r"\d+\.\d+(\.\d+)?", text)
    return number[0] if number else "unknown"
