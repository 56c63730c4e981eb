"""End a command together with the processes that it has started."""

import signal
from typing import NoReturn


def end_well() -> None:
    """Make SIGTERM and SIGHUP unwind this process like an interrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
