"""Programs: what each rank does in one step, and what strategies are made of."""
