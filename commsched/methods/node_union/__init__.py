"""Node-union: sums of nodes, coded near their entropy, go once to every other node."""

from commsched.methods.node_union.method import NodeUnion

__all__ = ["NodeUnion"]
