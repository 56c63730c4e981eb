"""All strategies by name."""

from commsched.program.strategy import Strategy
from commsched.registry import Registry

STRATEGIES: Registry[Strategy] = Registry("strategy", "commsched.strategies")
