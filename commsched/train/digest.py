"""Digests of the parameters at a training's end; ranks with equal tensors must agree."""

import hashlib
from collections.abc import Mapping

from mpi4py import MPI

from commsched.arrays import Array
from commsched.errors import Agreed
from commsched.kernels.modules import on_host
from commsched.run.job import agree


def digests_of(values: Mapping[str, Array]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes."""
    return {n: hashlib.sha256(on_host(v).tobytes()).hexdigest() for n, v in values.items()}


def digest_of(digests: Mapping[str, str]) -> str:
    """Return one SHA-256 of all tensors, independent of their division among ranks."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def common_digest(
    values: Mapping[str, Array], comm: MPI.Intracomm, when: str = "at the end"
) -> str:
    """Return the digest of all ranks' parameters together; reject ranks that differ."""
    mine = "\n".join(f"{digest} {name}" for name, digest in digests_of(values).items())
    found: dict[str, tuple[int, str]] = {}  # tensor -> first rank that has it, its digest
    for rank, text in enumerate(agree.gather_text(mine, comm)):
        for line in text.splitlines():
            digest, _, name = line.partition(" ")
            first, known = found.setdefault(name, (rank, digest))
            if known != digest:
                raise Agreed(f"rank {rank} holds other parameters than rank {first} {when}")
    return digest_of({name: digest for name, (_, digest) in found.items()})


def digest_per_rank(values: Mapping[str, Array], comm: MPI.Intracomm) -> str:
    """Return the digest of each rank's own tensors, in the order of the ranks."""
    digests = agree.gather_text(digest_of(digests_of(values)), comm)
    return digest_of({f"rank {rank:09}": digest for rank, digest in enumerate(digests)})
