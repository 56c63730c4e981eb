"""Start commsched, as `python -m commsched` and as the installed command."""

import sys


def main() -> int:
    """Run the command line; an interrupt while it is imported leaves no traceback."""
    try:
        from commsched.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
