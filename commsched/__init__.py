"""Plan, predict, run and show the communication of distributed neural-network training."""

import importlib

# The names of `import commsched`, by module; a module is imported at the first use of a name.
SURFACE = {
    "Exchanger": "commsched.run.exchanger",
    "Machine": "commsched.api",
    "Net": "commsched.api",
    "Plan": "commsched.api",
    "Prediction": "commsched.api",
    "break_even": "commsched.api",
    "compare": "commsched.api",
    "replanned": "commsched.planner.replan",
    "sweep": "commsched.api",
    "CommschedError": "commsched.errors",
}
__all__ = list(SURFACE)
__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> object:
    """Import a module that needs MPI, or takes long to import, at the first use of its names."""
    if name in SURFACE:
        return getattr(importlib.import_module(SURFACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
