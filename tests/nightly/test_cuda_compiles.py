"""Every CUDA kernel is machine code for the GPUs that are supported, made without a GPU."""

import re

import pytest

from commsched.kernels.cuda.compile import OPTIONS
from commsched.kernels.cuda.launch import source, sources
from tests.support import nvrtc

LIBRARIES = nvrtc.libraries()
ARCHITECTURES = {
    "libnvrtc.so.12": ("sm_70", "sm_80", "sm_90"),
    "libnvrtc.so.13": ("sm_80", "sm_90"),
}

if not LIBRARIES:
    pytest.skip(
        "NVRTC is not installed: pip install nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12",
        allow_module_level=True,
    )


@pytest.mark.parametrize("file", sources())
@pytest.mark.parametrize(
    ("library", "architecture"),
    [(name, each) for name in LIBRARIES for each in ARCHITECTURES[name]],
)
def test_every_kernel_compiles_without_a_warning(library, architecture, file):
    code = source(file)
    made = nvrtc.cubin(LIBRARIES[library], code, architecture, OPTIONS)
    kernels = re.findall(r"KERNEL (\w+)\(", code)
    assert kernels
    for name in kernels:
        assert f".text.{name}\0".encode() in made


def test_an_error_is_shown_with_its_place():
    library = next(iter(LIBRARIES.values()))
    with pytest.raises(AssertionError, match=r'error: identifier "y" is undefined'):
        nvrtc.cubin(library, "__global__ void f(int *x) { *x = y; }", "sm_80", ())
