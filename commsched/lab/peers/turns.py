"""`mpiexec -n P python -m commsched.lab.peers.turns MODEL ...`: all contenders train in turns.

A contender's turn is a few steps between two barriers, after an uncounted step that fills the
caches. Another contender begins each round, so that a disturbance of the machine affects all
equally. The turns of the slowest contender last at least SECONDS.
"""

import math
import time

from mpi4py import MPI

from commsched.lab.peers.contenders import Contender, alone, contenders
from commsched.lab.peers.job import joined, options, write
from commsched.lab.peers.record import ALONE, PeerTurns, Trained
from commsched.run.job import agree

SECONDS = 2.0


def _turn(contender: Contender, steps: int, comm: MPI.Intracomm) -> float:
    """Return the mean seconds of a step of the slowest rank."""
    contender.step()
    contender.finish()
    comm.Barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        contender.step()
    contender.finish()
    return agree.largest((time.perf_counter() - begun) / steps, comm)


def main() -> None:
    """Train on all ranks; rank 0 writes the measurements."""
    parser = options(__doc__, 4, "of a turn, at least")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not")
    args = parser.parse_args()
    with joined(args) as (comm, make):
        trained = {ALONE: alone(make()), **dict(contenders(make, args.plan, comm))}
        seconds: dict[str, list[float]] = {name: [] for name in trained}
        names, steps = list(trained), args.steps
        for turn in range(args.rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds[name].append(_turn(trained[name], steps, comm))
            if not turn:  # the first round warms up
                slowest = max(found.pop() for found in seconds.values())
                steps = max(steps, math.ceil(SECONDS / slowest))
        found = tuple(
            Trained(name=name, seconds=tuple(seconds[name]), loss=trained[name].held_out())
            for name in names
        )
        write(PeerTurns(model=args.model, seed=args.seed, steps=steps, trained=found), args, comm)


if __name__ == "__main__":
    main()
