"""Rates of codecs: medians of passes, on values that come from memory."""

from dataclasses import replace

from mpi4py import MPI

from commsched.calibrate import coding
from commsched.calibrate.coding import PASSES, measured, typical
from commsched.coding.dense import Dense
from commsched.coding.registry import CODECS
from commsched.machine.device import CodecRate, Device
from commsched.run.engine.probe import Arena

QUIET = Device(
    name="test",
    memory=1e9,
    bandwidth=1e10,
    flops=1e9,
    deal=1e-8,
    codecs={"fp16": CodecRate(encode=1e-9, add=2e-9, decode=3e-9, fixed=1e-6, fixed_add=2e-6)},
    source="test",
)


def slow(times: float) -> Device:
    """Everything takes `times` times as long."""
    rate = QUIET.codecs["fp16"]
    slower = CodecRate(
        encode=rate.encode * times,
        add=rate.add * times,
        decode=rate.decode * times,
        fixed=rate.fixed * times,
        fixed_add=rate.per_add * times,
    )
    return replace(
        QUIET,
        bandwidth=QUIET.bandwidth / times,
        flops=QUIET.flops / times,
        deal=QUIET.deal * times,
        codecs={"fp16": slower},
    )


def test_one_disturbed_pass_changes_nothing():
    assert PASSES >= 3
    for passes in ([slow(3.0), QUIET, QUIET], [QUIET, slow(0.5), QUIET]):
        assert typical(passes) == QUIET


def test_every_number_is_the_middle_one():
    found = typical([QUIET, slow(4.0), slow(2.0)])
    assert found == slow(2.0)
    mixed = [replace(QUIET, flops=f, bandwidth=b) for f, b in ((1e9, 3e9), (2e9, 1e9), (3e9, 2e9))]
    assert (typical(mixed).flops, typical(mixed).bandwidth) == (2e9, 2e9)


def test_every_listed_codec_is_measured_and_each_way_to_find_the_largest():
    names = [codec.name for codec in measured()]
    assert len(names) == len({*names})
    assert {*CODECS} < {*names}
    rates = {
        name: CodecRate(encode=1e-9 * (i + 1), add=0, decode=0) for i, name in enumerate(names)
    }
    device = replace(QUIET, codecs=rates)
    for way in ("", ":sampled", ":bisect", ":reused"):
        assert CODECS[f"topk:0.3{way}"].rate(device) == device.codecs[f"topk:0.01{way}"]


def test_a_codec_meets_the_same_values_again_only_after_all_of_the_memory(monkeypatch):
    calls, windows = 40, 16
    met: list[int] = []

    class Watched(Dense):
        def encode(self, values, state, start=0):
            met.append(values.ctypes.data)
            return super().encode(values, state, start)

    def clock(work) -> float:
        for _ in range(calls):
            work()
        return 1e-3

    monkeypatch.setattr(coding, "LARGE", 4 * coding.SMALL)
    monkeypatch.setattr(coding, "measured", lambda: [Watched()])
    monkeypatch.setattr(coding, "_clock", lambda *_: clock)
    arena = Arena(4 * windows * coding.LARGE)
    coding.device(MPI.COMM_SELF, arena, lambda: 0.0, 1.0)
    large = met[-calls:]
    assert len({*large[:windows]}) == windows
    assert large[windows : 2 * windows] == large[:windows]
