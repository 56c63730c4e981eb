"""Formats of other simulators; a plug-in writes the tasks of a plan's ranks as files."""
