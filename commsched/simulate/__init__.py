"""The predicted timeline: places the program that `run` executes on the machine's clocks."""
