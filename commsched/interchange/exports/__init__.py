"""Export formats for other simulators; each plug-in writes the tasks of a plan's ranks as files."""
