"""`commsched profile` may take longer than its timeout: each step of a rank is progress."""

import re

import pytest
from mpi4py import MPI

from commsched.run.job.watchdog import Watchdog
from commsched.train.profile_job import profile_job


def test_each_step_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = []
    beat, stage = Watchdog.beat, Watchdog.stage

    def counted(self: Watchdog) -> None:
        noted.append(self._what)
        beat(self)

    def staged(self: Watchdog, name: str) -> None:
        noted.append(self._what)
        stage(self, name)

    monkeypatch.setattr(Watchdog, "beat", counted)
    monkeypatch.setattr(Watchdog, "stage", staged)
    net = profile_job(
        "mlp:8:2",
        batch=4,
        optimizer="momentum",
        half=False,
        device="cpu",
        timeout=60.0,
        threads=1,
        seconds=0.1,
        check=lambda _: None,
    )
    source = MPI.COMM_WORLD.bcast("" if net is None else net.source)
    (steps,) = re.findall(r"of (\d+) steps", source)
    in_trainings = noted[noted.index("train") :]
    assert in_trainings.count("profile") >= int(steps) > 0
