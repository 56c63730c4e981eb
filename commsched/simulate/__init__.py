"""The predicted timeline: the same program as `run` executes, on the machine's clocks."""

from commsched.simulate.engine import simulate
from commsched.simulate.result import Prediction

__all__ = ["Prediction", "simulate"]
