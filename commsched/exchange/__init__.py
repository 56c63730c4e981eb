"""What methods are made of: phases, the parts of an operation, a rank's end of an exchange."""
