"""A job of ranks from its start to its end: launcher, agreement, clocks, deadlines, ending."""
