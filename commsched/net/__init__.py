"""Nets: the graph of layers and tensors that a plan is made for."""
