"""Machines: the nodes of ranks, speeds of links and devices, and the source of each number."""
