"""`mpiexec -n P python -m commsched.lab.peers.learning MODEL ...`: held-out losses of contenders.

The losses do not depend on the network, so these jobs need no testbed. One bucket size stands for
all dense peers, because they compute equal sums.
"""

from commsched.lab.peers.contenders import Contender, contenders
from commsched.lab.peers.job import joined, options, write
from commsched.lab.peers.record import CAP, Learned


def _learnt(contender: Contender, steps: int) -> float:
    """Return the held-out loss after some steps."""
    for _ in range(steps):
        contender.step()
    contender.finish()
    return contender.held_out()


def main() -> None:
    """Train on all ranks; rank 0 writes the losses."""
    args = options(__doc__, 100, "of each training").parse_args()
    with joined(args) as (comm, make):
        losses: dict[str, float | None] = {  # null in JSON: diverged
            name: _learnt(contender, args.steps)
            for name, contender in contenders(make, args.plan, comm, caps=(CAP,))
        }
        made = Learned(model=args.model, seed=args.seed, steps=args.steps, losses=losses)
        write(made, args, comm)


if __name__ == "__main__":
    main()
