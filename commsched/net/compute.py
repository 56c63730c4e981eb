"""Seconds of a net on a machine's device: as measured, modelled, or scaled by a roofline."""

from collections.abc import Callable
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.machine.model import Device
from commsched.net.graph import Layer, Net
from commsched.net.measured import (
    PROCESSOR,
    SAME,
    DeviceFit,
    Measured,
    Published,
    check_choice,
    distance,
    rates,
)
from commsched.units import count, nbytes

# A device this many times slower than the measured one counts as a processor, whose runs wait for
# the measured seconds instead of computing. A P100 is 1.7 times slower than a V100, a core 1,000.
EMULATED = 20.0


def fitted(net: Net, device: Device, choice: str = "") -> Net:
    """Give a net the seconds that its layers take on a device; `net.compute` says how.

    choice: measured, modelled or scaled; "": scaled if the seconds are known to be measured on
    another device, else as measured.
    """
    check_choice(choice)
    if net.compute is not None:
        if net.compute.choice != "measured" or net.compute.load:
            return _fitted_before(net, net.compute, device, choice)
        net = replace(net, compute=None)  # its seconds are as they were measured
    timed = any(layer.forward is not None or layer.backward is not None for layer in net.layers)
    if choice == "modelled":
        return _modelled(net, device) if timed else net
    if not timed:
        if choice:
            raise CommschedError(
                f"--compute {choice}: {net.name} has no measured seconds; leave the option out"
            )
        return net
    if choice == "measured":
        same = net.measured is not None and distance(net.measured, device) <= 2 * SAME
        return (
            net if same else replace(net, compute=DeviceFit(choice="measured", device=device.name))
        )
    return _scaled(net, device, insists=choice == "scaled")


def _fitted_before(net: Net, fit: DeviceFit, device: Device, choice: str) -> Net:
    """Return the net of a plan, whose seconds were fitted before; refuse a new choice."""
    if fit.device == device.name and choice in ("", fit.choice):
        return net
    raise CommschedError(
        f"{net.name}: its seconds were {fit.choice} for {fit.device} already, as a plan holds them;"
        " give the net file from which the plan was made"
    )


def origin(net: Net) -> list[str]:
    """Describe the source of a net's seconds, unless measured on this device under this load."""
    fit, measured = net.compute, net.measured
    if fit is None:
        return []
    if fit.choice == "modelled":
        return [f"forward and backward seconds modelled by a roofline of {fit.device}"]
    on = "measured on an unknown device" if measured is None else measured_on(measured)
    said = f"forward and backward seconds {on}"
    load = [fit.load] if fit.load else []
    if fit.choice == "measured":
        why = f": {fit.warning}" if fit.warning else ""
        return [f"{said}, used as they are for {fit.device}{why}", *load]
    steps = [f"to the throughput published for {fit.through}"] if fit.through else []
    if fit.through != fit.device:
        steps.append(f"by roofline to {fit.device}")
    return [f"{said}, scaled {' and '.join(steps)}: x {_shown(fit.factor)}", *load]


def _shown(factor: float) -> str:
    return f"{factor:.3g}" if factor < 1000 else f"{factor:,.0f}"


def measured_on(measured: Measured) -> str:
    """Name the device, precision, batch and load of measured seconds."""
    batch = f", batch {measured.batch}" if measured.batch else ""
    load = f", {count(measured.ranks, 'rank')} computing on a node" if measured.ranks else ""
    cores = f", {count(measured.cores, 'core')}" if measured.cores else ""
    threads = f", {count(measured.threads, 'thread')} each" if measured.threads else ""
    held = f", {nbytes(measured.working_set)} each" if measured.working_set else ""
    precise = f"{measured.precision}{batch}{load}{cores}{threads}{held}"
    return f"measured on {measured.device} ({precise})"


def compute_data(net: Net) -> dict[str, object]:
    """Return how the seconds of a net were made as JSON data."""
    fit, measured = net.compute, net.measured
    return {
        "choice": fit.choice if fit else "measured" if measured else "modelled",
        "measured_on": measured.device if measured else None,
        "factor": fit.factor if fit else 1.0,
        "origin": "; ".join(origin(net)),
    }


def _modelled(net: Net, device: Device) -> Net:
    """Remove the measured seconds: `Net.seconds` then uses the roofline of the device."""
    if not _has_work(net):
        raise CommschedError(
            f"--compute modelled: no layer of {net.name} states flops or bytes, which a"
            " model needs; use --compute measured"
        )
    layers = tuple(replace(layer, forward=None, backward=None) for layer in net.layers)
    apply = None if net.apply is None else 0.0  # for this device unknown
    fit = DeviceFit(choice="modelled", device=device.name)
    return replace(net, layers=layers, optimizer=None, apply=apply, compute=fit)


def _scaled(net: Net, device: Device, insists: bool) -> Net:
    measured = net.measured
    problem = ""
    if measured is None:
        problem = "the net does not say on which device they were measured"
    elif distance(measured, device) <= 2 * SAME or not _total(net.layers):
        return net
    elif rates(measured, device.precision) is None:
        problem = f"the net does not state the peaks of {measured.device}"
    elif not _has_work(net):
        problem = "no layer states flops or bytes, so that they cannot be scaled"
    if problem and insists:
        raise CommschedError(f"--compute scaled: {net.name}: {problem}")
    if problem or measured is None:
        return replace(
            net, compute=DeviceFit(choice="measured", device=device.name, warning=problem)
        )
    known: tuple[Measured | Published, ...] = (measured, *measured.throughputs)
    # A machine may state what its device reaches, which is less than what a publication states.
    own = next((one for one in measured.throughputs if one.device == device.name), None)
    near = own or min(known, key=lambda one: distance(one, device))
    layers, before = net.layers, _total(net.layers)
    if isinstance(near, Published):
        layers = _at(layers, _ratio(measured, measured, near, device.precision))
        level = before * near.reference / near.rate / _total(layers)
        layers = _at(layers, lambda flops, nbytes: level)
    there = device if own is None else _faster(own, device)
    layers = _at(layers, _ratio(measured, near, there, device.precision))
    factor = _total(layers) / before
    if not insists and (factor > EMULATED or device.name == PROCESSOR):
        slow = f"a run waits for them instead of computing; a roofline gives x {_shown(factor)}"
        return replace(net, compute=DeviceFit(choice="measured", device=device.name, warning=slow))
    through = near.device if isinstance(near, Published) else ""
    fit = DeviceFit(choice="scaled", device=device.name, factor=factor, through=through)
    memory = _ratio(measured, measured, device, device.precision)(0.0, 1.0)  # bounds the update
    return net.updated(memory, layers=layers, compute=fit)


def _faster(own: Published, device: Device) -> Published:
    """Return a published device with its rates multiplied by the machine's device factors."""
    flops, float32 = own.flops * device.flops_times, own.float32 * device.flops_times
    bandwidth = own.bandwidth * device.bandwidth_times
    return replace(own, flops=flops, float32=float32, bandwidth=bandwidth)


Ratio = Callable[[float, float], float]


def _ratio(
    measured: Measured, before: Measured | Published, after: Published | Device, precision: str
) -> Ratio:
    """Return a function of a layer's flops and bytes: the factor of its s on another device.

        r = max(F / (e P'), b / B') / max(F / (e P), b / B)

    F = flops; b [B] = memory traffic; P, P' [1/s] = peaks and B, B' [B/s] = memory bandwidths
    before and after; e = share of the peak that layers reach, taken to be the same on both.
    Source: Williams, Waterman & Patterson, "Roofline", CACM 52(4), 2009.
    Holds for layers that keep both devices busy.
    """
    old, new = rates(before, precision), rates(after, precision)
    assert old is not None
    assert new is not None
    share = measured.efficiency

    def ratio(flops: float, nbytes: float) -> float:
        then = max(flops / (share * old[0]), nbytes / old[1])
        return max(flops / (share * new[0]), nbytes / new[1]) / then if then else 1.0

    return ratio


def _at(layers: tuple[Layer, ...], ratio: Ratio) -> tuple[Layer, ...]:
    """Multiply seconds by their layer's ratio; a layer without work takes the others' mean."""
    known = [
        (seconds, ratio(flops, nbytes))
        for layer in layers
        for seconds, flops, nbytes in _directions(layer)
        if flops or nbytes
    ]
    spent = sum(seconds for seconds, _ in known)
    mean = sum(s * r for s, r in known) / spent if spent else 1.0

    def scaled(seconds: float | None, flops: float, nbytes: float) -> float | None:
        if seconds is None:
            return None
        return seconds * (ratio(flops, nbytes) if flops or nbytes else mean)

    return tuple(
        replace(
            layer,
            forward=scaled(layer.forward, layer.forward_flops, layer.forward_bytes),
            backward=scaled(layer.backward, layer.backward_flops, layer.backward_bytes),
        )
        for layer in layers
    )


def _directions(layer: Layer) -> list[tuple[float, float, float]]:
    """List measured seconds, flops and bytes of a layer's forward and backward."""
    both = (
        (layer.forward, layer.forward_flops, layer.forward_bytes),
        (layer.backward, layer.backward_flops, layer.backward_bytes),
    )
    return [(seconds, *work) for seconds, *work in both if seconds is not None]  # type: ignore[misc]


def _total(layers: tuple[Layer, ...]) -> float:
    return sum(seconds for layer in layers for seconds, _, _ in _directions(layer))


def _has_work(net: Net) -> bool:
    return any(flops or nbytes for layer in net.layers for _, flops, nbytes in _directions(layer))
