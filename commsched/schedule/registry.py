"""All collectives by name: each turns a group of ranks into a schedule."""

from collections.abc import Callable

from commsched.machine.model import Group
from commsched.registry import Registry
from commsched.schedule.rounds import Schedule

COLLECTIVES: Registry[Callable[[Group], Schedule]] = Registry("collective", "commsched.collectives")
