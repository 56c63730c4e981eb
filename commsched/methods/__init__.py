"""How a bucket is summed: one or more exchanges with local work between them."""

from commsched.methods.base import Choice, Ends, Method, Phase
from commsched.methods.direct import Direct, illegal
from commsched.methods.held import Held, hold
from commsched.methods.payload import Payload
from commsched.methods.table import (
    METHODS,
    find_method,
    legal_methods,
    lossy_name,
    method_at,
    phase_of,
    phases_of,
)

__all__ = [
    "METHODS",
    "Choice",
    "Direct",
    "Ends",
    "Held",
    "Method",
    "Payload",
    "Phase",
    "find_method",
    "hold",
    "illegal",
    "legal_methods",
    "lossy_name",
    "method_at",
    "phase_of",
    "phases_of",
]
