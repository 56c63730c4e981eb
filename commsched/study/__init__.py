"""Studies: many plans of nets, machines, planners and bandwidths, as rows of one table."""
