"""The laboratory: measurements of this project and of the papers. Only `cli` imports it."""
