"""What a plan means for each rank: one file or folder per strategy."""
