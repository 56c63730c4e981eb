"""The entry point of `python -m commsched` and of the installed command."""

import sys


def main() -> int:
    """Run the command line; an interrupt during its import leaves no traceback."""
    try:
        from commsched.interrupts import dropped_interrupts, raise_soon

        with dropped_interrupts(raise_soon):
            from commsched.cli.main import main as run

            return run()
    except KeyboardInterrupt:
        return 130
    finally:
        exec("")  # else an interrupt in such a call, as dataclass makes, lets CPython die of SIGINT


if __name__ == "__main__":
    sys.exit(main())
