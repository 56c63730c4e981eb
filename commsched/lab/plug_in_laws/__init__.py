"""Plug-ins of users: skeletons to begin with, and the laws that a collective or codec obeys."""
