"""Checkpoints of a script: the states of its training's parts and of torch's random numbers."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.run.job import agree
from commsched.run.job.elastic import FOLDER
from commsched.run.job.store import Store
from commsched.run.job.watchdog import watchdog

TIMEOUT = 600.0  # s for which ranks wait for each other


class Checkpoints:
    """Saves and restores `parts`, such as model, optimizer and `Sync`, on all ranks together.

    A part has `state_dict` and `load_state_dict`. The state of torch's random numbers on
    the CPU is saved, too.
    The default `folder` is that of `commsched elastic`; a script without this supervisor must name
    a folder. All ranks make a Checkpoints after `attach`.
    """

    def __init__(
        self,
        *parts: Any,
        folder: str | Path | None = None,
        comm: MPI.Intracomm | None = None,
    ) -> None:
        self._parts = parts
        self._comm = MPI.COMM_WORLD if comm is None else comm
        given = os.environ.get(FOLDER) if folder is None else folder
        if given is None:
            raise CommschedError(
                "Checkpoints need folder=DIR, or start the script by 'commsched elastic'"
            )
        made = {"parts": len(parts)}
        self._store, self._checked = Store(Path(given), self._comm, "pt", made), False

    def resume(self) -> int:
        """Restore the last whole checkpoint; return the next step, 0 without a checkpoint."""
        with watchdog(self._comm, "Checkpoints", TIMEOUT, "the timeout"):
            found = self._store.last(_unpacked)
        if found is None:
            return 0
        manifest, states = found
        for part, state in zip(self._parts, states["parts"], strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(states["random"])
        return manifest.step

    def save(self, step: int) -> None:
        """Write a checkpoint from which the script continues at `step`; keep the previous one."""
        with watchdog(self._comm, "Checkpoints", TIMEOUT, "the timeout"):
            self._store.save(step, agree.on_all_ranks(self._packed, self._comm), {})

    def _packed(self) -> bytes:
        """Return the states as a file's content, which can be read without running code."""
        states = {
            "parts": [part.state_dict() for part in self._parts],
            "random": torch.get_rng_state(),
        }
        buffer = io.BytesIO()
        torch.save(states, buffer)
        if not self._checked:
            _unpacked(buffer.getvalue(), "a state to save")
            self._checked = True
        return buffer.getvalue()


def _unpacked(content: bytes, where: str) -> Any:
    """Read states without running code."""
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).splitlines()[0]
        raise CommschedError(f"{where} holds more than tensors and plain values: {first}") from None
