"""Machines: nodes of ranks, the speeds of links and devices, and the source of each number."""
