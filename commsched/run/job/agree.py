"""Checks before the first message: equal plans, the planned number of ranks, the right hosts."""

import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.run.job.launcher import alone

T = TypeVar("T")


class Agreed(CommschedError):
    """An error that all ranks raise alike, so that each rank can end without waiting for others."""


def check_launcher() -> None:
    """Refuse N singletons, which come from a launcher that does not speak to our MPI."""
    wrong = alone(MPI.COMM_WORLD.size)
    if wrong is not None:
        raise Agreed(wrong)


def check_comm(comm: object) -> None:
    """Refuse a communicator that cannot make collective calls from several threads."""
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        kind = "COMM_NULL" if comm == MPI.COMM_NULL else type(comm).__name__
        raise CommschedError(f"comm must be an mpi4py Intracomm such as COMM_WORLD, got {kind}")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise CommschedError(
            "an Exchanger communicates in a thread of its own, but MPI was initialised without"
            " THREAD_MULTIPLE; leave mpi4py.rc.thread_level at 'multiple'"
        )
    check_launcher()


def check_plan(plan: Plan, comm: MPI.Intracomm) -> None:
    """Refuse a wrong number of ranks, and ranks that hold different plans."""
    mine = np.frombuffer(plan.hash.encode(), np.uint8).copy()
    assert len(mine) == 64, "only a plan as its file gives it back can be run"
    least, most = np.empty_like(mine), np.empty_like(mine)
    comm.Allreduce(mine, least, op=MPI.MIN)
    comm.Allreduce(mine, most, op=MPI.MAX)
    if (least != most).any():
        raise Agreed(
            f"the ranks hold different plans: rank {comm.rank} has {plan.hash[:12]}...; give all"
            " ranks the same file"
        )
    if comm.size != plan.machine.size:  # the plans are equal, so all ranks raise or none
        raise Agreed(
            f"the plan is for {plan.machine.size} ranks, but {comm.size} were started; use"
            f" 'mpiexec -n {plan.machine.size}'"
        )


def gather_text(text: str, comm: MPI.Intracomm) -> list[str]:
    """Return every rank's text, on every rank; in UTF-8, not pickled."""
    mine = np.frombuffer(text.encode(), np.uint8)
    lengths = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([len(mine)], np.int64), lengths)
    everything = np.empty(int(lengths.sum()), np.uint8)
    comm.Allgatherv(mine, [everything, lengths.tolist()])
    ends = np.cumsum(lengths)
    return [
        everything[end - length : end].tobytes().decode()
        for end, length in zip(ends, lengths, strict=True)
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
    """Return the host of every rank, and what differs from the machine."""
    hosts = gather_text(socket.gethostname(), comm)
    return hosts, differences(machine, hosts)


def gather_numbers(value: float, comm: MPI.Intracomm) -> list[float]:
    """Return every rank's number, on every rank."""
    found = np.empty(comm.size)
    comm.Allgather(np.array([value], np.float64), found)
    return [float(x) for x in found]


def largest(value: float, comm: MPI.Intracomm) -> float:
    """Return the largest number over all ranks, on every rank."""
    return max(gather_numbers(value, comm))


def on_all_ranks(work: Callable[[], T], comm: MPI.Intracomm) -> T:
    """Do local work on all ranks; an error on any rank is raised on all, so that none waits."""
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
    """Send the numbers of one rank to every rank; all pass equally many."""
    sent = np.array(numbers, np.float64)
    comm.Bcast(sent, rank)
    return [float(x) for x in sent]


def broadcast_bytes(text: bytes, comm: MPI.Intracomm) -> bytes:
    """Send the bytes of rank 0 to every rank."""
    size = np.array([len(text)], np.int64)
    comm.Bcast(size, 0)
    data = np.frombuffer(text, np.uint8).copy()
    if comm.rank:
        data = np.empty(int(size[0]), np.uint8)
    comm.Bcast(data, 0)
    return data.tobytes()
