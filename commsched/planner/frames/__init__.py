"""Frames, which make a strategy's plan with the help of a planner: one file per strategy."""
