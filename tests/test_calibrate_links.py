"""Links measured by rings: a disturbed turn does not count, and noise cannot make bytes free."""

import numpy as np
import pytest

from commsched.calibrate import links
from commsched.calibrate.links import curve

HOP, PER_BYTE, START = 3e-5, 8e-9, 2e-4  # s, s/B, s


class Rings:
    """Rings of two ranks that take a known time, longer in some of their measurements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longer: dict[int, float]) -> None:
        self.comm = type("Comm", (), {"size": 2})()
        self.longer, self.count = longer, 0
        monkeypatch.setattr(links, "_overhead", lambda comm: HOP / 4)

    def rounds(self, collective: str) -> int:
        return 2

    def ring(self, message: int, budget: float) -> float:
        self.count += 1
        wire = (message - links.SIZES[0]) * PER_BYTE
        return (START + 2 * (HOP + wire)) * self.longer.get(self.count, 1.0)

    def without_rest(self, message: int) -> float:
        return 2 * HOP


@pytest.mark.parametrize("disturbed", range(1, 2 * len(links.SIZES) + 1))
def test_a_ring_that_is_disturbed_once_does_not_count(monkeypatch, disturbed):
    link, startup = curve(Rings(monkeypatch, {disturbed: 2.1}), 6.0)
    assert startup == pytest.approx(START)
    assert (link.latency + 2 * link.overhead, link.per_byte) == pytest.approx((HOP, PER_BYTE))
    for nbytes, seconds in link.points[1:]:
        assert seconds == pytest.approx((nbytes - links.SIZES[0]) * PER_BYTE)


def test_rings_are_measured_again_while_the_longest_ones_take_as_long(monkeypatch):
    count = len(links.SIZES)
    second = {count - 1: 4.2, 2 * count - 1: 4.2}
    rings = Rings(monkeypatch, second)
    assert curve(rings, 6.0)[0].per_byte == pytest.approx(PER_BYTE)
    assert rings.count == 3 * count


def test_a_slow_link_is_not_measured_with_messages_that_only_repeat_its_bandwidth(monkeypatch):
    link, _ = curve(Rings(monkeypatch, {}), 6e-3)
    assert len(link.points) == links.LEAST
    assert np.diff([seconds for _, seconds in link.points]).min() > 0
