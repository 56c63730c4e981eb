"""The graph of layers and tensors that a plan is made for."""

from commsched.ir.graph import Graph, Layer, Tensor
from commsched.ir.sparsity import Sparsity

__all__ = ["Graph", "Layer", "Sparsity", "Tensor"]
