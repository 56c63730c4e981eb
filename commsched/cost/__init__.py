"""Prices: seconds and bytes of schedules on machines, round by round or in closed form."""
