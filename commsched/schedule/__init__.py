"""Routes: which rank sends which blocks to whom, as rounds of integer arrays."""
