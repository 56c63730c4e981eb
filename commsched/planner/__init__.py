"""Planners: which tensors travel together, by which method; one file per planner."""

from commsched.planner.base import PLANNERS, Request, make_plan

__all__ = ["PLANNERS", "Request", "make_plan"]
