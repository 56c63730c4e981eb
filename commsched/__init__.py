"""Plan, predict, run and show the communication of distributed neural-network training."""

import importlib

__all__ = ["Exchanger", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import what needs MPI only when it is asked for."""
    if name == "Exchanger":
        return importlib.import_module("commsched.run.exchanger").Exchanger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
