"""Plan, predict, run and show the communication of distributed neural-network training."""

import importlib

# What `import commsched` offers, by the module that has it; imported when it is asked for.
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
    """Import what needs MPI or takes long only when it is asked for."""
    if name in SURFACE:
        return getattr(importlib.import_module(SURFACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
