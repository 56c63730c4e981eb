"""Import of other programs' files as nets, one module per format in `formats`, and shared code."""
