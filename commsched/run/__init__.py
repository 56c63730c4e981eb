"""Execute a plan with MPI on real ranks; imported only where MPI is needed."""
