"""Programs: the operations of each rank in one step, and the building blocks of strategies."""
