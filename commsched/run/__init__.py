"""Execute a plan with MPI on the very ranks; nothing here is imported where MPI is not needed."""
