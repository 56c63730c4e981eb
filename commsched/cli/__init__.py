"""The command line: finds the command, runs it, and turns errors into one line and a status."""
