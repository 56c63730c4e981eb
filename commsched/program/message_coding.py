"""The coding of messages between stages: the bytes of a packet, and the seconds of coding."""

from typing import NamedTuple

import numpy as np

from commsched.coding.registry import CODECS
from commsched.machine.model import Device
from commsched.net.bucket import BucketSpec
from commsched.net.graph import ITEMSIZE
from commsched.plan.model import Plan
from commsched.program.parameters import Parameter

AS_THEY_ARE = "dense"
# Codecs without feedback, whose packets have a known size: a microbatch's values have no earlier
# ones that something could have been kept from.
BY_VARIANCE = ("adaqp:6", "adaqp:4", "adaqp:4:50", "adaqp:3")
BY_BLOCK = ("quant:8", "quant:4", "quant:2:64", "quant:2", "quant:1:64", "quant:1")
NAMES = ("bf16", "fp16", "fp8", *BY_BLOCK, *BY_VARIANCE)
MESSAGES = Parameter(AS_THEY_ARE, (AS_THEY_ARE, *NAMES))


class Coded(NamedTuple):
    """A message as it travels; both seconds are without jitter."""

    nbytes: int
    codec: str = ""
    values: int = 0
    encode: float = 0.0  # s
    decode: float = 0.0  # s


class MessageCoding(NamedTuple):
    """A codec for all messages of a plan; `width`: B of one value of a message."""

    name: str
    width: int
    device: Device

    def of(self, nbytes: int) -> Coded:
        """Code a message of `nbytes` B; its last value may be padded."""
        if self.name == AS_THEY_ARE or not nbytes:
            return Coded(nbytes=nbytes)
        codec, values = CODECS[self.name], -(-nbytes // self.width)
        spec, start, stop = BucketSpec.uniform(values), np.array([0]), np.array([values])
        rate, raw = codec.rate(self.device), 4.0 * values
        return Coded(
            nbytes=int(codec.nbytes(spec, start, stop, 1)[0]),
            codec=self.name,
            values=values,
            encode=rate.fixed + rate.encode * raw,
            decode=rate.per_decode + rate.decode * raw,
        )


def coding_of(plan: Plan) -> MessageCoding:
    """Return how a plan codes its messages.

    Values are as wide as the net's parameters, or narrower if the net's layers were measured in 16
    bits with float32 parameters.
    """
    net = plan.net
    types = [tensor.dtype for layer in net.layers for tensor in layer.tensors][:1]
    types += [net.measured.precision] if net.measured else []
    width = min((ITEMSIZE[each] for each in types), default=ITEMSIZE["float32"])
    name = str(plan.params.get("messages", MESSAGES.default))
    return MessageCoding(name, width, plan.machine.device)
