"""Train our own small nets with the engine: an application of it, not a part of it."""
