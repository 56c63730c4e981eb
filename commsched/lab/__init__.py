"""The laboratory: measures this project and the papers. Nothing below imports it."""
