"""Methods of several phases: one file or folder per method. Their machinery is in `exchange`."""
