"""Planners: which tensors travel together, by which method; one file per planner."""

from commsched.planner.base import DEFAULT, PLANNERS, make_plan
from commsched.planner.request import Request

__all__ = ["DEFAULT", "PLANNERS", "Request", "make_plan"]
