"""The command line: find a command, run it, report an error in one line and by an exit status."""
