"""How right predictions are on this machine: nets x fabrics x methods, each run for real."""
