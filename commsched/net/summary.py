"""A net in one line."""

from commsched.net.graph import Net
from commsched.units import count, nbytes, seconds


def summary(net: Net) -> str:
    """Describe a net's layers, tensors and measured seconds, or modelled work, in one line."""
    layers = net.layers
    text = (
        f"{count(len(layers), 'layer')}, {count(len(net.tensors), 'tensor')} of"
        f" {nbytes(net.numel * 4)} in float32; "
    )
    if all(layer.forward is None for layer in layers):
        flops = [sum(x.forward_flops for x in layers), sum(x.backward_flops for x in layers)]
        return text + f"forward {flops[0]:.4g} flop, backward {flops[1]:.4g} flop, not measured"
    forward = sum(layer.forward or 0.0 for layer in layers)
    backward = sum(layer.backward or 0.0 for layer in layers)
    return text + (
        f"data {seconds(net.data)}, forward {seconds(forward)}, backward {seconds(backward)},"
        f" optimizer {seconds(net.optimizer or 0.0)}"
    )
