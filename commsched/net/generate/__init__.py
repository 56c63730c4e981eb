"""Writes the shipped nets from profiles, formulas and papers."""
