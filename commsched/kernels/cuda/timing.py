"""Seconds and bytes that work on a GPU takes, and what it ran on."""

from collections.abc import Callable

import cupy


def seconds(work: Callable[[], object]) -> float:
    """Between two events around the work on the current stream, whose work before is done."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3


def extra_bytes(work: Callable[[], object]) -> int:
    """What CuPy's pool takes from the device for the work, beyond what it holds now.

    Not less than the peak: the pool may hold more than it has given away.
    """
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    held = int(pool.total_bytes())
    work()
    return int(pool.total_bytes()) - held


def versions() -> dict[str, str]:
    """The GPU, its driver, and the libraries."""
    runtime = cupy.cuda.runtime
    return {
        "gpu": runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode(),
        "driver": str(runtime.driverGetVersion()),
        "cuda": str(runtime.runtimeGetVersion()),
        "cupy": cupy.__version__,
    }
