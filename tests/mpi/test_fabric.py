"""What the ranks say they run on: the same on all of them, and in the timeline of their run."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from commsched import records
from commsched.machine.fabric import Fabric
from commsched.run import session
from commsched.run.job import agree
from commsched.run.job.fabric import (
    RankFacts,
    common_fabric,
    cores_of_host,
    crowded,
    fabric,
    library,
    mean_or_median,
    shared_cores,
    transport,
)
from commsched.run.session import RunOptions
from tests.support.ranks import WORLD
from tests.support.small_plans import graph, machine, plan

pytestmark = pytest.mark.groups(1, 3)


def test_every_rank_tells_the_same_fabric():
    found = fabric(WORLD)
    data = records.to_data(found)
    assert set(agree.gather_text(repr(data), WORLD)) == {repr(data)}
    assert records.read(Fabric, data, "here") == found
    assert sum(found.ranks) == WORLD.size
    assert socket.gethostname() in found.hosts
    assert found.cores <= len(os.sched_getaffinity(0))
    assert found.differences(fabric(WORLD)) == []


def test_hosts_stand_in_tree_order_and_what_differs_between_ranks_is_all_told():
    ranks = [
        RankFacts(host=host, mpi="m", transport="t", cores=cores, processor=processor)
        for host, cores, processor in [("b", 8, "x"), ("a", 2, "y"), ("b", 4, "x"), ("b", 8, "y")]
    ]
    assert common_fabric(ranks) == Fabric(
        hosts=("b", "a"), ranks=(3, 1), mpi="m", transport="t", cores=2, processor="x, y"
    )


@pytest.mark.parametrize(
    ("ranks", "cores"),
    [
        ([("k", "a", [0, 1])] * 2, 2.0),
        ([("k", "a", [0]), ("k", "a", [1])], 2.0),  # each pinned to a core of its own
        ([("k", "a", [0, 1]), ("k", "b", [0, 1])], 1.0),  # two hosts of one kernel
        ([("k", host, [0, 1]) for host in "abc" for _ in range(2)], 2 / 3),
        ([("k", "a", [0, 1]), ("j", "b", [0, 1])], 2.0),
        ([("k", "a", range(8)), ("j", "b", range(4))], 4.0),
        ([("k", "a", [0, 1, 2])] * 2 + [("k", "b", [0, 1, 2])], 1.0),
    ],
)
def test_hosts_of_one_kernel_share_its_cores(ranks, cores):
    assert shared_cores(ranks) == pytest.approx(cores)


def test_these_ranks_share_the_cores_that_they_may_use():
    usable = np.zeros(os.cpu_count() or 1, np.int64)
    usable[list(os.sched_getaffinity(0))] = 1
    WORLD.Allreduce(MPI.IN_PLACE, usable, MPI.MAX)
    assert cores_of_host(WORLD) == usable.sum()
    assert crowded(WORLD) is bool(WORLD.size > usable.sum())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI root@x Distribution, ident: 5", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.17 for Linux* OS\n\0", "Intel(R) MPI Library 2021.17"),
        ("MVAPICH Version:\t4.1rc2", "MVAPICH 4.1rc2"),
        ("an MPI", "an MPI"),
        ("", "unknown"),
    ],
)
def test_a_library_is_told_by_name_and_version(text, name):
    assert library(text) == name


@pytest.mark.parametrize(
    ("text", "variables", "said"),
    [
        ("x\nMPICH Device:       ch4:ucx ofi\ny", {}, "ch4:ucx ofi"),
        (
            "MPICH Device:  ch4:ucx ofi",
            {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"},
            "ch4:ofi tcp",
        ),
        ("MPICH Device: ch3", {"MPIR_CVAR_CH4_NETMOD": "ofi"}, "ch3"),
        (
            "Open MPI v5.0.11",
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,sm,self", "MPIR_CVAR_CH4_NETMOD": "ofi"},
            "ob1 tcp,sm,self",
        ),
        ("Open MPI v5.0.11", {"UCX_TLS": ""}, "the default transport"),
    ],
)
def test_a_transport_is_what_library_and_environment_tell(text, variables, said):
    assert transport(text, variables) == said


def test_a_run_tells_its_fabric_and_that_it_is_another_one(tmp_path):
    folder = Path(agree.gather_text(str(tmp_path), WORLD)[0])
    here = fabric(WORLD)
    elsewhere = replace(here, mpi="Some MPI 1.0", cores=here.cores + 1)
    said = [
        f"calibrated with Some MPI 1.0, run with {here.mpi}",
        f"calibrated with {here.cores + 1} usable cores, run with {here.cores} usable cores",
    ]
    base = machine(1, WORLD.size)
    for where, differences in ((None, []), (here, []), (elsewhere, said)):
        made = plan(graph([1000]), replace(base, fabric=where), ["native+dense"])
        timeline = session.run(made, WORLD, folder / "run.json", RunOptions(steps=1))
        if timeline is not None:
            assert timeline.header.fabric == here
            assert timeline.header.other_fabric == tuple(differences)


def test_seconds_count_whole_where_threads_share_cores():
    steps = [1.0, 1.0, 1.0, 9.0]  # a thread that waits for a core waits long, and rarely
    assert mean_or_median(4, 2.0)(steps) == 3.0
    assert mean_or_median(2, 2.0)(steps) == 1.0
