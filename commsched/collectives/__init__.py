"""Collectives: each file turns a group of ranks into a schedule and registers itself by name."""

from collections.abc import Callable

from commsched.machine import Group
from commsched.registry import Registry
from commsched.schedule import Schedule

COLLECTIVES: Registry[Callable[[Group], Schedule]] = Registry("collective", "commsched.collectives")

__all__ = ["COLLECTIVES"]
