"""How a run of values is written for the wire. One file per codec."""

from commsched.codecs.base import Array, Codec, State
from commsched.registry import Registry

CODECS: Registry[Codec] = Registry("codec", "commsched.codecs")

__all__ = ["CODECS", "Array", "Codec", "State"]
