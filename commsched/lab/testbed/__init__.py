"""Several shaped hosts on one Linux machine, as network namespaces joined by a bridge.

    launcher = Launcher(family="MPICH", command=("mpiexec",))
    with Testbed.up(hosts=4, lanes=2, rates=["200mbit", "h3=50mbit"]) as bed:
        done = bed.run(["python", "train.py"], ranks=8, launcher=launcher, timeout=60.0)

Needs root, iproute2 and util-linux.
"""
