"""Seconds of a net for another number of computing ranks on a node than the measured one."""

from dataclasses import replace

import numpy as np

from commsched.machine.model import Machine
from commsched.net.compute import fitted
from commsched.net.graph import Net
from commsched.net.measured import DeviceFit
from commsched.units import count

TELLING = 1.02  # copies slowed by a smaller factor say nothing about sharing of memory


def on_machine(net: Net, machine: Machine, choice: str = "") -> Net:
    """Give a net the seconds that its layers take on a machine, for its device and its load.

    choice: see `fitted`; seconds "measured" or "modelled" stay whatever the load.
    """
    return under_load(fitted(net, machine.device, choice), machine, choice)


def under_load(net: Net, machine: Machine, choice: str = "") -> Net:
    """Scale seconds measured on this processor to the ranks that compute on each node.

        t(k) = t(1) (1 + m (b(k) - 1)),  b(k) = B(1) / B(k)

    t(k) [s] = a step while k ranks of a node compute; B(k) [B/s] = memory that each of k ranks
    copies, measured; m = share of t(1) that waits for memory, from t(1) and t(n) of the profile.
    Source: conservation of memory traffic. Holds if every rank has its threads' cores.
    """
    on, ranks = net.measured, max(machine.ranks_of_node)
    if on is None or on.ranks in (0, ranks) or on.device not in machine.device.name:
        return net
    if choice in ("measured", "modelled"):
        return net
    factor, missing = _factor(net, machine, ranks)
    was, now = count(on.ranks, "rank"), count(ranks, "rank")
    if factor is None:
        said = (
            f"{was} computed on a node when {net.name} was measured, {now} will, and {missing}:"
            f" measure it with {now} on a node, or its seconds may be far off"
        )
    else:
        said = f"for {now} computing on a node instead of {was}: x {factor:.3g}"
    fit = net.compute or DeviceFit(choice="measured", device=machine.device.name)
    return replace(_times(net, factor or 1.0), compute=replace(fit, load=said))


def _factor(net: Net, machine: Machine, ranks: int) -> tuple[float | None, str]:
    """Return the factor on the net's seconds, or None and what is not known."""
    on = net.measured
    assert on is not None
    if on.cores and ranks * max(on.threads, 1) > on.cores:
        return None, f"its {count(on.cores, 'core')} are too few for them"
    if on.alone is None:
        return None, "it was not measured how much one rank alone is faster"
    if on.ranks == 1:
        return None, "one rank alone does not show how ranks slow each other"
    if ranks == 1 or on.alone == 1.0:
        return on.alone, ""
    then, now = (_longer(machine, number) for number in (on.ranks, ranks))
    if then is None or now is None:
        return None, "the machine does not say how that many ranks share memory"
    if then < TELLING:
        return None, "a copy of memory does not say why they slow each other"
    return on.alone + (1.0 - on.alone) * (now - 1.0) / (then - 1.0), ""


def _longer(machine: Machine, ranks: int) -> float | None:
    """Return the factor by which a copy takes longer while `ranks` ranks of a node copy."""
    if not machine.shared_memory or ranks > machine.shared_memory[-1][0]:
        return None
    counts, rates = np.array(machine.shared_memory).T
    return float(np.interp(ranks, counts, rates[0] / rates))


def _times(net: Net, factor: float) -> Net:
    """Multiply all measured seconds."""

    def times(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * factor

    layers = tuple(
        replace(layer, forward=times(layer.forward), backward=times(layer.backward))
        for layer in net.layers
    )
    return net.updated(factor, layers=layers, data=net.data * factor)
