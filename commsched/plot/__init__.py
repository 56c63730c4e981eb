"""Pictures of timelines; the only package that imports matplotlib, and only when it is used."""
