"""Measured products of matrices: the speed of a device by their shapes."""

from dataclasses import replace

import pytest

from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.change import changed
from commsched.net.graph import Layer, Net


def test_a_matrix_takes_the_speed_of_the_nearest_measured_one() -> None:
    rows = ((2048.0, 2048.0, 7000.0, 98.0), (4096.0, 4096.0, 7000.0, 112.0))
    device = replace(file.load("summit").device, matrices=rows)
    assert device.rate((2048, 2560, 2560)) == device.rate((2560, 2048, 2560)) == 98e12
    assert device.rate((8192, 4096, 4096)) == 112e12
    assert device.rate() == device.flops * device.efficiency
    assert replace(device, matrices=()).rate((8192, 4096, 4096)) == device.rate()
    layer = Layer(name="product", forward_flops=98e9, matrix=(2000, 2000, 8000))
    assert Net(name="n", layers=(layer,)).seconds(layer, device)[0] == pytest.approx(1e-3)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf")])
def test_a_measured_matrix_has_positive_numbers(value: float) -> None:
    device = file.load("summit").device
    with pytest.raises(CommschedError, match="matrices must be positive"):
        replace(device, matrices=((1.0, 1.0, 1.0, value),))


def test_an_efficiency_that_is_set_replaces_the_measured_products() -> None:
    device = changed(file.load("summit"), ["efficiency=0.5"]).device
    assert device.rate((2048, 2048, 2048)) == 62.5e12


def test_a_layer_has_a_matrix_of_three_sizes_or_none() -> None:
    with pytest.raises(CommschedError, match="matrix must be three positive sizes"):
        Layer(name="product", matrix=(2, 3))
