"""The search for the best plan: candidates, their prices and their iteration time."""
