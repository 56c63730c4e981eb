"""A job from its start to its end: launcher, agreement, clocks, deadlines, ending."""
