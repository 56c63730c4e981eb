"""Training of small nets with the engine: an application of the engine, not a part of it."""
