"""What bounds a plan: memory, the error budget, and the risk of wrong prices."""
