"""One file per command: `add(commands)` declares it and sets `run`, the function that does it.

Only light modules are imported at the top; a command imports what it needs when it runs, so that
`commsched --help` stays quick.
"""
