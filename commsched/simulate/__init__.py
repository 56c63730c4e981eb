"""The predicted timeline: the same program as `run` executes, on the machine's clocks."""
