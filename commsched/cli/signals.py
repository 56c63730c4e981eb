"""How a command ends that has started others: it takes them with it."""

import signal
from typing import NoReturn


def end_well() -> None:
    """Let a request to end, or a closed terminal, unwind this process like an interrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
