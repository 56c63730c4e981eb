"""How the plan of each strategy is made around a planner: one file per strategy."""
