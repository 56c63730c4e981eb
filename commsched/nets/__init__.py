"""Real networks on arrays of any module, in one file each: plug-ins give a `Net`, or a family."""

from commsched.nets.base import Gradients, Layer, Net, Parameters
from commsched.nets.walk import Walk, gradients
from commsched.registry import Registry

NETS: Registry[Net] = Registry("net to train", "commsched.nets")

__all__ = ["NETS", "Gradients", "Layer", "Net", "Parameters", "Walk", "gradients"]
