"""Accuracy of predictions on this machine: every net, fabric and method is run and compared."""
