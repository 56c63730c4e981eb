"""Settings for all tests: repeatable examples, no screen, and which folders need what."""

import os

from hypothesis import HealthCheck, settings

from commsched.run.launcher import environment_rank

os.environ["MPLBACKEND"] = "Agg"

UNDER_MPI = environment_rank() is not None

# All ranks of an MPI test must draw the same examples, and CI the same ones every time.
settings.register_profile(
    "commsched",
    deadline=None,
    max_examples=50,
    derandomize=UNDER_MPI or "CI" in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is not a mistake
)
settings.load_profile("commsched")

collect_ignore: list[str] = []
if not UNDER_MPI:
    collect_ignore.append("mpi")
