"""The choice among strategies: candidates, their rows, their cost in learning, and the winner."""
