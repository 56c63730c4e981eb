"""Codecs on the arrays of a GPU write the packets that they write on the host."""

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from tests.gpu.here import needs_a_gpu
from tests.test_codecs_modules import NAMES, STATE, gradient

needs_a_gpu()
cupy = pytest.importorskip("cupy")


# Of the transform the device rounds otherwise.
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("fft")])
def test_a_gradient_on_the_device_is_coded_there(name):
    codec, values = CODECS[name], gradient(name, 70_001)
    wanted = codec.encode(values.copy(), dict(STATE)).copy()
    packet = codec.encode(cupy.asarray(values), dict(STATE))
    assert isinstance(packet, cupy.ndarray)
    out, here = cupy.ones(len(values), cupy.float32), np.ones(len(values), np.float32)
    codec.decode(packet, out)
    codec.decode(wanted, here)
    assert packet.nbytes == wanted.nbytes
    # Means of blocks are sums, which a device adds in another order; least squares multiply that.
    rtol = 1e-3 if "fit:" in name else 1e-5
    np.testing.assert_allclose(cupy.asnumpy(out), here, rtol=rtol)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("fft")])
def test_a_spectrum_of_the_device_is_as_near_as_one_of_the_host(name):
    """Other roundings may swap bins of nearly equal size, which brings the sum no further off."""
    codec, values = CODECS[name], gradient(name, 70_001)
    left = []
    for packet in (
        codec.encode(values.copy(), dict(STATE)),
        codec.encode(cupy.asarray(values), dict(STATE)).get(),  # the host reads it
    ):
        out = np.empty(len(values), np.float32)
        codec.decode(packet, out)
        left.append(np.linalg.norm(out - values) / np.linalg.norm(values))
    assert left[1] == pytest.approx(left[0], rel=1e-3)
