"""Several shaped hosts on one Linux machine, as network namespaces joined by a bridge.

    launcher = Launcher(family="MPICH", command=("mpiexec",))
    with Testbed.up(hosts=4, lanes=2, rates=["200mbit", "h3=50mbit"]) as bed:
        done = bed.run(["python", "train.py"], ranks=8, launcher=launcher, timeout=60.0)

Needs root, iproute2 and util-linux.
"""

from commsched.testbed.bed import Completed, Testbed
from commsched.testbed.mpi import Launcher
from commsched.testbed.network import Traffic
from commsched.testbed.spec import Spec

__all__ = ["Completed", "Launcher", "Spec", "Testbed", "Traffic"]
