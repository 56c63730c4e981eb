"""Checks before the first message: equal plans, the planned number of ranks, the right hosts."""

import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from mpi4py import MPI

from commsched import __version__
from commsched.arrays import Array
from commsched.errors import Agreed, CommschedError
from commsched.machine.model import Group, Machine
from commsched.plan.model import Plan
from commsched.run.job import lifeline, segments
from commsched.run.job.launcher import check_alone, stay_in_job

T = TypeVar("T")
SHOWN = 60  # most characters of a setting in an error
NOT_GIVEN = "none"


def check_launcher() -> None:
    """Raise an error if the launcher does not work with our MPI."""
    check_alone(MPI.COMM_WORLD.size)


def check_comm(comm: object) -> None:
    """Reject a communicator that cannot be used from several threads.

    From now on this rank ends with its launcher, and others notice if it ends silently.
    """
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        kind = "COMM_NULL" if comm == MPI.COMM_NULL else type(comm).__name__
        raise CommschedError(f"comm must be an mpi4py Intracomm such as COMM_WORLD, got {kind}")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CommschedError(
            "an Exchanger communicates in a thread of its own, but MPI was initialised without"
            " THREAD_MULTIPLE; leave mpi4py.rc.thread_level at 'multiple'"
        )
    check_launcher()
    stay_in_job()
    lifeline.met()


def check_alike(settings: Mapping[str, str], comm: MPI.Intracomm, advice: str) -> None:
    """Raise an error if ranks have different settings; name the rank and the setting."""
    own = msgspec.json.encode(dict(settings))
    mine = np.frombuffer(hashlib.sha256(own).digest(), np.uint8)
    digests = gather_array(mine, comm)
    if (digests != mine).any():
        texts = [msgspec.json.decode(text, type=dict[str, str]) for text in _texts(own, comm)]
        raise Agreed(f"{_difference(texts, gather_text(socket.gethostname(), comm))}; {advice}")


def check_start(command: str, options: Mapping[str, str], comm: MPI.Intracomm) -> None:
    """Raise an error if ranks differ in version, command or options, before any exchange."""
    settings = {"the version of commsched": __version__, "the command": command, **options}
    check_alike(settings, comm, "start all ranks with the same command line and the same package")
    if comm.size == MPI.COMM_WORLD.size:  # all ranks of the job are here
        segments.unname()


def check_files(files: Mapping[str, object], comm: MPI.Intracomm) -> None:
    """Raise an error if some ranks name a file and others do not (None)."""
    for what, path in files.items():
        wanted = gather_numbers(path is not None, comm)
        if min(wanted) != max(wanted):
            raise CommschedError(f"give {what}=FILE on all ranks, or on none")


def check_plan(plan: Plan, comm: MPI.Intracomm) -> None:
    """Reject a wrong number of ranks, and ranks that have different plans."""
    assert len(plan.hash) == 64, "only a plan as its file gives it back can be run"
    check_alike({"the plan": f"{plan.hash[:12]}..."}, comm, "give all ranks the same file")
    if comm.size != plan.machine.size:  # the plans are equal, so all ranks raise or none
        raise Agreed(
            f"the plan is for {plan.machine.size} ranks, but {comm.size} were started; use"
            f" 'mpiexec -n {plan.machine.size}'"
        )


def _difference(settings: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> str:
    """Name the first setting in which ranks differ, and a rank that differs from most others."""
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [each.get(name, NOT_GIVEN) for each in settings]
        counts = Counter(values)  # at a tie rank 0's value wins
        if len(counts) > 1:
            usual = counts.most_common(1)[0][0]
            rank = next(rank for rank, value in enumerate(values) if value != usual)
            return (
                f"the ranks differ in {name}: rank {rank} on host {hosts[rank]} has"
                f" {_cut(values[rank])}, {counts[usual]} of {len(values)} ranks have {_cut(usual)}"
            )
    raise AssertionError("the ranks' settings are equal")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def gather_text(text: str, comm: MPI.Intracomm) -> list[str]:
    """Return every rank's text, on every rank; texts travel in UTF-8, not pickled."""
    return [found.decode() for found in _texts(text.encode(), comm)]


def _texts(text: bytes, comm: MPI.Intracomm) -> list[bytes]:
    mine = np.frombuffer(text, np.uint8)
    lengths = gather_array(np.array(len(mine)), comm)
    everything = np.empty(int(lengths.sum()), np.uint8)
    comm.Allgatherv(mine, [everything, lengths.tolist()])
    ends = np.cumsum(lengths)
    return [
        everything[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)
    ]


def differences(machine: Machine, hosts: list[str]) -> list[str]:
    """Return the differences between the machine's placement and the real one, in sentences."""
    found = []
    names = list(dict.fromkeys(hosts))
    if len(names) != machine.nodes:
        found.append(
            f"machine {machine.name!r} has {machine.nodes} nodes, but the ranks run on"
            f" {len(names)} hosts ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
        )
    host_of: dict[int, str] = {}
    node_of: dict[str, int] = {}
    for rank, (node, host) in enumerate(zip(machine.node_of_rank, hosts, strict=True)):
        together = host_of.setdefault(node, host) == host
        apart = node_of.setdefault(host, node) == node
        if not together or not apart:
            where = f"with node {node_of[host]}" if not apart else f"away from {host_of[node]}"
            found.append(f"rank {rank} of node {node} runs on host {host}, {where}")
            break
    return found


def placement(machine: Machine, comm: MPI.Intracomm) -> tuple[list[str], list[str]]:
    """Return the host of every rank, and the differences from the machine in sentences."""
    hosts = gather_text(socket.gethostname(), comm)
    return hosts, differences(machine, hosts)


def group_of(comm: MPI.Intracomm) -> Group:
    """Return all ranks with their hosts; hosts are numbered in the order of the ranks."""
    hosts = gather_text(socket.gethostname(), comm)
    names = list(dict.fromkeys(hosts))
    return Group(ranks=tuple(range(comm.size)), nodes=tuple(map(names.index, hosts)))


def bring(text: bytes, comm: MPI.Intracomm) -> list[bytes]:
    """Return every rank's bytes on rank 0, an empty list elsewhere."""
    lengths = [int(length) for length in gather_numbers(len(text), comm)]
    everything = bytearray(sum(lengths) if comm.rank == 0 else 0)
    comm.Gatherv(text, [everything, lengths, MPI.BYTE], 0)
    if comm.rank:
        return []
    ends = np.cumsum(lengths).tolist()
    return [bytes(everything[e - n : e]) for e, n in zip(ends, lengths, strict=True)]


def gather_numbers(value: float, comm: MPI.Intracomm) -> list[float]:
    """Return every rank's number, on every rank."""
    found: list[float] = gather_array(np.array(value, np.float64), comm).tolist()
    return found


def gather_array(values: Array, comm: MPI.Intracomm) -> Array:
    """Return every rank's array, all of one shape and type, on every rank: (ranks, ...)."""
    found = np.empty((comm.size, *values.shape), values.dtype)
    comm.Allgather(values, found)
    return found


def largest(value: float, comm: MPI.Intracomm) -> float:
    """Return the largest number over all ranks, on every rank."""
    return max(gather_numbers(value, comm))


def on_all_ranks(work: Callable[[], T], comm: MPI.Intracomm) -> T:
    """Do local work on all ranks; raise an error of any rank on all, so that none waits."""
    result, text = None, ""
    try:
        result = work()
    except CommschedError as error:
        text = str(error)
    texts = gather_text(text, comm)
    failed = [rank for rank, said in enumerate(texts) if said]
    if failed:
        where = "" if len(failed) == comm.size else f"rank {failed[0]}: "
        raise Agreed(where + texts[failed[0]])
    return result  # type: ignore[return-value]  # None only where `work` returns it


def broadcast_numbers(rank: int, numbers: Sequence[float], comm: MPI.Intracomm) -> list[float]:
    """Send the numbers of one rank to every rank; all ranks pass equally many."""
    sent = np.array(numbers, np.float64)
    comm.Bcast(sent, rank)
    return [float(x) for x in sent]


def broadcast_data(data: Any, comm: MPI.Intracomm, kind: Any = Any) -> Any:
    """Send JSON data of rank 0 to every rank, and read it as `kind`."""
    return msgspec.json.decode(broadcast_bytes(msgspec.json.encode(data), comm), type=kind)


def broadcast_bytes(text: bytes, comm: MPI.Intracomm) -> bytes:
    """Send the bytes of rank 0 to every rank."""
    size = np.array([len(text)], np.int64)
    comm.Bcast(size, 0)
    data = np.frombuffer(text, np.uint8).copy()
    if comm.rank:
        data = np.empty(int(size[0]), np.uint8)
    comm.Bcast(data, 0)
    return data.tobytes()
