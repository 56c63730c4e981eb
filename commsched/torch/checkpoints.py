"""Checkpoints of a script: a file per rank in a folder per step, and a manifest renamed last."""

import hashlib
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from mpi4py import MPI

from commsched import files
from commsched.errors import CommschedError
from commsched.run.job import agree
from commsched.run.job.elastic import FOLDER, MANIFEST
from commsched.run.job.watchdog import watchdog

MOST = 2**34  # B of a rank's file
TIMEOUT = 600.0  # s that ranks wait for each other


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a checkpoint."""

    format: Literal["commsched-script/1"] = "commsched-script/1"
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # the next step
    files: list[str]  # the digest of each rank's file


class Checkpoints:
    """Saves and restores `parts`, such as model, optimizer and `Sync`, on all ranks together.

    A part has `state_dict` and `load_state_dict`. The state of torch's random numbers is kept, too.
    `folder` is that of `commsched elastic`; a script without this supervisor names it. All ranks
    make one, after `attach`.
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
        self._folder, self._checked = Path(given), False

    def resume(self) -> int:
        """Restore the last checkpoint; return the step to go on with, 0 without a checkpoint."""
        with watchdog(self._comm, "Checkpoints", TIMEOUT, "the timeout"):
            found = agree.on_all_ranks(self._read, self._comm)
        if found is None:
            return 0
        step, states = found
        for part, state in zip(self._parts, states["parts"], strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(states["random"])
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint from which the script goes on with `step`; remove the one before."""
        with watchdog(self._comm, "Checkpoints", TIMEOUT, "the timeout"):
            content = agree.on_all_ranks(self._packed, self._comm)
            agree.on_all_ranks(lambda: self._write(step, content), self._comm)
            digests = agree.gather_text(hashlib.sha256(content).hexdigest(), self._comm)
            agree.on_all_ranks(lambda: self._finish(step, digests), self._comm)

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

    def _file(self, step: int) -> Path:
        return self._folder / f"step{step}" / f"rank{self._comm.rank}.pt"

    def _write(self, step: int, content: bytes) -> None:
        path = self._file(step)
        files.make_folder(path.parent)
        files.write_bytes(path, content)

    def _finish(self, step: int, digests: list[str]) -> None:
        if self._comm.rank:
            return
        files.write(self._folder / MANIFEST, Manifest(step=step, files=digests))
        for old in self._folder.glob("step*"):
            if old.name != f"step{step}":
                shutil.rmtree(old, ignore_errors=True)

    def _read(self) -> tuple[int, Any] | None:
        """Return the step and the states of the last checkpoint, if there is one."""
        if not (self._folder / MANIFEST).exists():
            return None
        manifest = files.read(self._folder / MANIFEST, Manifest)
        if len(manifest.files) != self._comm.size:
            raise CommschedError(
                f"{self._folder}: the checkpoint is of {len(manifest.files)} ranks, but"
                f" {self._comm.size} were started"
            )
        path = self._file(manifest.step)
        content = files.read_bytes(path, MOST)
        if hashlib.sha256(content).hexdigest() != manifest.files[self._comm.rank]:
            raise CommschedError(f"{path}: its digest is not the one in {self._folder / MANIFEST}")
        states = _unpacked(content, str(path))
        if len(states["parts"]) != len(self._parts):
            raise CommschedError(
                f"{path} holds {len(states['parts'])} parts, but Checkpoints has {len(self._parts)}"
            )
        return manifest.step, states


def _unpacked(content: bytes, where: str) -> Any:
    """Read states without running code."""
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).splitlines()[0]
        raise CommschedError(f"{where} holds more than tensors and plain values: {first}") from None
