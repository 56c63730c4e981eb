"""Checkpoints: a file per rank in a folder per step, and a manifest that is renamed last.

The manifest names the files of one step with their digests, so a dying rank leaves no half
checkpoint. The previous checkpoint stays, too, with its own manifest: the job continues from it if
a file of the last one is torn or changed. The caller defines the content of the files.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from mpi4py import MPI

from commsched import files
from commsched.errors import Agreed, CommschedError
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.run.job import agree
from commsched.run.job.elastic import MANIFEST
from commsched.run.job.ending import say

PLAN = "plan.json"
FOLDER = re.compile(r"step\d+")  # of a checkpoint; other folders are the user's
MOST = 2**34  # B of a rank's file
T = TypeVar("T")
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a checkpoint; `made`: the settings of its job, such as a training's."""

    format: Literal["commsched-checkpoint/1"] = "commsched-checkpoint/1"
    step: Count  # the next step
    plan: Digest | None = None
    made: dict[str, str | int | float | bool]
    planning: dict[str, str | int | float | bool] | None = None  # flags; checkpoints of 0.1: None
    scalars: dict[str, float]  # equal on all ranks
    files: list[Digest]  # of each rank's file


class Store:
    """The checkpoints of a job in one folder; all ranks call its methods together."""

    def __init__(
        self,
        folder: Path,
        comm: MPI.Intracomm,
        suffix: str,  # of the ranks' files
        made: Mapping[str, Any],
        plan: Plan | None = None,
        planning: Mapping[str, Any] | None = None,  # flags that may be omitted to continue
    ) -> None:
        self._folder, self._comm, self._suffix, self._plan = folder, comm, suffix, plan
        self._made, self._planning = dict(made), dict(planning or {})
        self._whole: list[int] = []  # steps of the last whole checkpoints, the newest first

    def begin(self) -> None:
        """Make the folder of a new job; raise an error if it has a checkpoint."""
        agree.on_all_ranks(self._begin, self._comm)

    def last(self, read: Callable[[bytes, str], T]) -> tuple[Manifest, T] | None:
        """Find the last whole checkpoint; return this rank's part as `read(content, where)`."""
        found = agree.on_all_ranks(
            lambda: self._manifests() if self._comm.rank == 0 else None, self._comm
        )
        kind = tuple[str, list[Manifest]]
        wrong, manifests = agree.broadcast_data(found, self._comm, kind)
        for manifest in manifests:
            agree.on_all_ranks(partial(self._check, manifest), self._comm)
            try:
                content = agree.on_all_ranks(partial(self._content, manifest), self._comm)
            except Agreed as error:
                wrong = wrong or str(error)
                continue
            self._whole = [found.step for found in manifests if found.step <= manifest.step]
            self._planning = {**self._planning, **(manifest.planning or {})}
            if wrong and self._comm.rank == 0:
                files.write(self._folder / MANIFEST, manifest)
                say(f"{wrong}; going on from the checkpoint of step {manifest.step}")
            parse = partial(read, content, str(self._file(manifest.step)))
            return manifest, agree.on_all_ranks(parse, self._comm)
        if wrong:
            raise Agreed(wrong)
        return None

    def _begin(self) -> None:
        path = self._folder / MANIFEST
        if path.exists():
            step = files.read(path, Manifest).step
            raise CommschedError(
                f"{self._folder} holds a checkpoint of step {step}; add --resume, or give another"
                " folder"
            )
        if self._comm.rank == 0:
            files.make_folder(self._folder)
            if self._plan is not None:
                plan_file.write(self._folder / PLAN, self._plan)

    def _manifests(self) -> tuple[str, list[Manifest]]:
        """Return, on rank 0, an error in a manifest, and all readable ones, the last step first."""
        if self._comm.rank:
            return "", []
        wrong, found = "", dict[int, Manifest]()
        each, newest = list(self._folder.glob(f"step*/{MANIFEST}")), self._folder / MANIFEST
        for path in [newest, *each] if each or newest.exists() else []:
            try:
                manifest = files.read(path, Manifest)
                found[manifest.step] = manifest
            except CommschedError as error:
                wrong = wrong or str(error)
        if wrong and not found:
            raise CommschedError(f"no checkpoint can be read: {wrong}; give another folder")
        return wrong, [found[step] for step in sorted(found, reverse=True)]

    def _check(self, found: Manifest) -> None:
        """Reject a checkpoint of another training."""
        where = f"{self._folder / MANIFEST}: the checkpoint"
        if found.plan != self._hash():
            raise CommschedError(
                f"{where} belongs to plan {_short(found.plan)}, not to {_short(self._hash())};"
                f" leave out --plan to go on with {self._folder / PLAN}"
            )
        for flag in sorted(found.made.keys() | self._made.keys()):
            then, now = found.made.get(flag), self._made.get(flag)
            if then != now:
                was = f"without {flag}" if then is None else f"with {flag} {then}"
                is_now = f"there is no {flag}" if now is None else f"it is {now}"
                raise CommschedError(f"{where} was made {was}, now {is_now}")
        before = self._planning if found.planning is None else found.planning
        for flag, now in self._planning.items():
            then = before.get(flag)
            if then != now:
                was = f"without {flag}" if then is None else f"with {flag} {then}"
                raise CommschedError(f"{where} was planned {was}, now it is {now}; leave it out")
        if len(found.files) != self._comm.size:
            raise CommschedError(
                f"{where} is of {len(found.files)} ranks, but {self._comm.size} were started"
            )

    def _hash(self) -> str | None:
        return None if self._plan is None else self._plan.hash

    def _content(self, manifest: Manifest) -> bytes:
        """Return the bytes of this rank's file; raise an error if the file has changed."""
        path = self._file(manifest.step)
        content = files.read_bytes(path, MOST)
        if hashlib.sha256(content).hexdigest() != manifest.files[self._comm.rank]:
            raise CommschedError(
                f"{path}: the file was changed: its digest differs from the one in"
                f" {self._folder / MANIFEST}"
            )
        return content

    def save(self, step: int, content: bytes, scalars: Mapping[str, float]) -> None:
        """Write this rank's part of the checkpoint before `step`; keep the previous checkpoint."""
        agree.on_all_ranks(lambda: self._write(step, content), self._comm)
        digests = agree.gather_text(hashlib.sha256(content).hexdigest(), self._comm)
        agree.on_all_ranks(lambda: self._finish(step, digests, scalars), self._comm)

    def _file(self, step: int) -> Path:
        return self._folder / f"step{step}" / f"rank{self._comm.rank}.{self._suffix}"

    def _write(self, step: int, content: bytes) -> None:
        path = self._file(step)
        files.make_folder(path.parent)
        files.write_bytes(path, content)

    def _finish(self, step: int, digests: list[str], scalars: Mapping[str, float]) -> None:
        if self._comm.rank != 0:
            return
        manifest = Manifest(
            step=step,
            plan=self._hash(),
            made=self._made,
            planning=self._planning,
            scalars=dict(scalars),
            files=digests,
        )
        files.write(self._file(step).with_name(MANIFEST), manifest)  # used if the next one is torn
        files.write(self._folder / MANIFEST, manifest)
        self._whole = [step, *(old for old in self._whole if old != step)][:2]
        kept = {f"step{whole}" for whole in self._whole}
        for old in self._folder.iterdir():
            if FOLDER.fullmatch(old.name) and old.name not in kept:
                shutil.rmtree(old, ignore_errors=True)


def _short(plan: str | None) -> str:
    return "none" if plan is None else f"{plan[:12]}..."
