"""How a run of values is written for the wire. One file per codec, or per family of codecs."""

from commsched.codecs.base import Array, Codec, State
from commsched.codecs.compose import Codecs

CODECS = Codecs("codec", "commsched.codecs")

__all__ = ["CODECS", "Array", "Codec", "State"]
