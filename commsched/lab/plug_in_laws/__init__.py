"""Support for users' plug-ins: skeletons, and the laws that a collective or codec obeys."""
