"""A user's script with a function that builds model, loss, optimizer and batches."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.net import file as net_file
from commsched.net.summary import summary
from commsched.run.job import agree
from commsched.torch.capture import capture
from commsched.torch.meta import model_work


def capture_file(where: str, output: str | Path, **options: Any) -> str:
    """Capture a script's model on all ranks of COMM_WORLD; rank 0 writes and summarises the net.

    `options` are those of `capture`. Return "" on the other ranks.
    """
    comm = MPI.COMM_WORLD
    model, loss, optimizer, batches = agree.on_all_ranks(lambda: built_by(where), comm)
    net = capture(model, loss, batches, optimizer, comm, **options)
    if comm.rank:
        return ""
    net_file.write(output, net)
    return summary(net)


def model_file(where: str, output: str | Path, **options: Any) -> str:
    """Write the net of a script's model, built on the meta device; return a summary.

    `options` are those of `model_work`.
    """
    net = model_work(lambda: built_by(where), **options)
    net_file.write(output, net)
    return summary(net)


def built_by(where: str) -> tuple[Any, Any, Any, Any]:
    """Return the result of SCRIPT.py:FUNCTION: model, loss, optimizer, batches."""
    file, _, function = where.rpartition(":")
    path = Path(file)
    if not file or not function.isidentifier():
        raise CommschedError(f"{where}: write SCRIPT.py:FUNCTION, such as train.py:build")
    if not path.is_file():
        raise CommschedError(f"{file}: there is no such script")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommschedError(f"{file}: not a Python script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not callable(build := getattr(module, function, None)):
        raise CommschedError(f"{file} has no function {function!r}")
    made = build()
    if not isinstance(made, tuple) or len(made) != 4:
        raise CommschedError(
            f"{where} must return (model, loss, optimizer, batches), got {type(made).__name__}"
        )
    return made
