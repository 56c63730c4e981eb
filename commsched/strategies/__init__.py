"""What a plan means for each rank: one file per strategy."""

from commsched.registry import Registry
from commsched.strategies.base import Memory, Strategy

STRATEGIES: Registry[Strategy] = Registry("strategy", "commsched.strategies")

__all__ = ["STRATEGIES", "Memory", "Strategy"]
