"""What CuPy itself is asked for is there: seen without a GPU, where its wheel is installed."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from commsched.errors import CommschedError
from commsched.kernels.cuda.compile import OPTIONS, compiled
from commsched.kernels.cuda.launch import source, sources
from commsched.kernels.device import gpus
from tests.support import strict_arrays

cupy = pytest.importorskip("cupy")
HERE = Path(__file__).parents[1]


def named_in(folder):
    """Every dotted name of CuPy in the sources of a package."""
    texts = [path.read_text() for path in (HERE.parent / "commsched" / folder).rglob("*.py")]
    return sorted({each for text in texts for each in re.findall(r"\bcupy((?:\.\w+)+)", text)})


@pytest.mark.parametrize(
    "name", [*strict_arrays.SAME, "asarray", "fft.rfft", "fft.irfft", "linalg.lstsq"]
)
def test_a_function_that_numpy_plays_is_there(name):
    found = cupy
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize("name", strict_arrays.KEYWORDS)
def test_it_takes_what_numpy_takes_by_name(name):
    assert strict_arrays.KEYWORDS[name] <= set(inspect.signature(getattr(cupy, name)).parameters)


@pytest.mark.parametrize(
    "name", [*strict_arrays.METHODS, *strict_arrays.FIELDS, "T", "get", "tolist", "view"]
)
def test_a_method_that_numpy_plays_is_there(name):
    assert hasattr(cupy.ndarray, name)


@pytest.mark.parametrize("name", sorted({*named_in("run"), *named_in("kernels")}))
def test_what_the_sources_name_is_there(name):
    *parts, last = name.removeprefix(".").split(".")
    found = cupy
    for number, part in enumerate(parts):
        if not hasattr(found, part):
            importlib.import_module(".".join(["cupy", *parts[: number + 1]]))
        found = getattr(found, part)
    if not hasattr(found, last):
        importlib.import_module(f"cupy{name}")


@pytest.mark.parametrize("form", ["cubin", "ptx"])
@pytest.mark.parametrize("file", sources())
def test_its_binding_of_the_compiler_makes_machine_code(file, form):
    from cupy.cuda import nvrtc

    kind = "sm_90" if form == "cubin" else "compute_80"
    made = compiled(nvrtc, file, source(file), (f"-arch={kind}", *OPTIONS), form)
    kernels = re.findall(r"KERNEL (\w+)\(", source(file))
    assert kernels
    assert all(name.encode() in made for name in kernels)
    assert 90 in nvrtc.getSupportedArchs()


def test_its_binding_of_nccl_is_what_we_call():
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("NCCL is not installed: pip install nvidia-nccl-cu13")
    assert (nccl.NCCL_FLOAT32, nccl.NCCL_SUM) == (7, 0)  # as tests/cupy_on_cpu has them
    assert isinstance(nccl.get_unique_id(), bytes)
    assert callable(nccl.NcclCommunicator.allReduce)


def test_without_a_gpu_it_says_so_in_one_sentence():
    try:
        assert gpus() > 0
    except CommschedError as error:
        assert re.match(r"--device cuda: CuPy finds no GPU to use here\b", str(error))  # noqa: PT017
