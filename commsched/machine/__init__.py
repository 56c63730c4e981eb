"""Machines: who sits where, how fast links and devices are, and where each number comes from."""
