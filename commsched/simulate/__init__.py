"""The predicted timeline: the same program as `run` executes, on the machine's clocks."""

from commsched.simulate.engine import Prediction, simulate

__all__ = ["Prediction", "simulate"]
