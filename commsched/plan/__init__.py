"""Plans: what is exchanged when, how and why; frozen, readable and hashed."""

from commsched.plan.bucket import BucketSpec, Piece
from commsched.plan.model import Launch, Plan, Reason

__all__ = ["BucketSpec", "Launch", "Piece", "Plan", "Reason"]
