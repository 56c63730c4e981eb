"""Plans: what is exchanged when, how and why; frozen, readable and hashed."""
