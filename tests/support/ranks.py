"""What the ranks of an MPI test tell each other."""

from collections.abc import Sequence

from mpi4py import MPI

from commsched.run.job import agree


def together(problems: Sequence[str]) -> None:
    """Fail on all ranks with what any rank found, once nobody communicates any more.

    An empty text is no problem.
    """
    texts = agree.gather_text("\n".join(filter(None, problems)), MPI.COMM_WORLD)
    assert not any(texts), "\n".join(f"rank {r}: {t}" for r, t in enumerate(texts) if t)
