"""Changes during a run: another plan, a tensor over its error budget, drifting prices."""
