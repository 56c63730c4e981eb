"""Machines: who sits where, how fast links and devices are, and where each number comes from."""

from commsched.machine.fabric import Fabric, HeldOut
from commsched.machine.model import CodecRate, Device, Group, Link, Machine, Nic, resized

__all__ = [
    "CodecRate",
    "Device",
    "Fabric",
    "Group",
    "HeldOut",
    "Link",
    "Machine",
    "Nic",
    "resized",
]
