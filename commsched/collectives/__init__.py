"""Collectives: one file per collective. Their machinery is in `schedule`."""
