"""One file per command: `@command` declares the function that does it.

Only light modules are imported at the top; a command imports what it needs when it runs, so that
`commsched --help` stays quick.
"""
