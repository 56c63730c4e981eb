"""DASO: gradients are averaged in each node, parameters less often between the nodes."""

from commsched.strategies.daso.strategy import Daso

__all__ = ["Daso"]
