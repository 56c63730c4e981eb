"""Validation of predictions on this machine: nets, fabrics and methods are run and compared."""
