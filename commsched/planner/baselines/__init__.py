"""Planners of other systems, one file each."""
