"""Pictures of timelines and tables; the only package that imports matplotlib."""
