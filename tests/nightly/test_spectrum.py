"""The CUDA kernels of a spectrum take no more memory than is asked."""

import tracemalloc

import pytest

from commsched.coding.registry import CODECS
from commsched.exchange.pair import encode_with_feedback
from commsched.lab.bench.gpu import EXTRA
from tests.cuda_on_cpu import cpu
from tests.test_spectrum import PIECE, halves


@pytest.mark.skipif(cpu.MARKS[0].args[0], reason="g++ is not installed")
@pytest.mark.xdist_group("cuda on cpu")
@pytest.mark.parametrize("name", ["fft:0.15", "quant:8", "fp16", "fp16:feedback", "fp8:e4m3"])
def test_kernels_take_no_more_memory_than_is_asked(name):
    """Beside gradient and state: what codecs make for their kernels, at the peak."""
    codec, values = CODECS[name], halves(64 * PIECE)
    state = {"gradient": values, "lost": 0 * values}
    with cpu.kernels():
        codec.encode(values[:PIECE], {})  # compiles
        tracemalloc.start()
        try:
            packet = (
                encode_with_feedback(codec, state) if codec.feedback else codec.encode(values, {})
            )
            codec.add(packet, state["gradient"])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert packet.nbytes <= peak <= EXTRA * values.nbytes
