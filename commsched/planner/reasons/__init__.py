"""The reasons of a plan's choices: margins, runners-up, and the printed advice."""
