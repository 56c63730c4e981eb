"""Programs: what each rank does in one step, as operations on named streams."""

from commsched.program.draft import Draft
from commsched.program.model import STREAMS, After, Kind, Op, Program, Role, is_exchange_stream

__all__ = [
    "STREAMS",
    "After",
    "Draft",
    "Kind",
    "Op",
    "Program",
    "Role",
    "is_exchange_stream",
]
