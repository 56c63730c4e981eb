"""Changes while a run goes on: another plan, a tensor over its error budget, drifting prices."""
