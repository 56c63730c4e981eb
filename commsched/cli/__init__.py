"""One file per command: `add(commands)` declares it and sets `run`, the function that does it.

A module without `add` is no command. Only the standard library and what is light is imported at
the top; a command imports what it needs when it runs, so that `commsched --help` stays quick.
"""
