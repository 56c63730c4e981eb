"""Our own planners, one file each."""
