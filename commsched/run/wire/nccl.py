"""The all-reduce of NCCL as `native`, for ranks that have a GPU each."""

from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl
from mpi4py import MPI

from commsched.arrays import Array
from commsched.exchange.endpoint import Endpoint
from commsched.run.job import agree
from commsched.run.wire.cuda import Cuda
from commsched.run.wire.device import Event
from commsched.run.wire.path import Exchange, Lane, Path, PendingMove

KNOWN = MPI.Comm.Create_keyval()  # an MPI communicator's attribute: NCCL's, and its stream


class Nccl:
    """A path that leaves native sums to NCCL and all other messages to another path."""

    def __init__(self, path: Path, device: Cuda) -> None:
        self._path, self.device, self.whole = path, device, path.whole

    def lane(self, comm: MPI.Intracomm, tag: int) -> Lane:
        return self._path.lane(comm, tag)

    def join(self, comm: MPI.Intracomm) -> None:
        if comm.Get_attr(KNOWN) is None:
            # A separate stream does not wait for other communicators.
            comm.Set_attr(KNOWN, (nccl_communicator(comm), cupy.cuda.Stream()))

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        return NcclSum(held.take(0, 1), self, comm)

    def begin(self, values: Array, comm: MPI.Intracomm) -> Event:
        """Begin to sum (n,) float32 in place, after the earlier work of this thread's stream."""
        self.join(comm)
        attribute: Any = comm.Get_attr(KNOWN)
        known, own = attribute
        stream = self.device.after(own)
        if values.size:
            where, kind, how = values.data.ptr, nccl.NCCL_FLOAT32, nccl.NCCL_SUM
            known.allReduce(where, where, values.size, kind, how, stream.ptr)
        return self.device.end(stream)

    def works(self, comm: MPI.Intracomm) -> bool:
        """Tell whether a sum of ones is the number of ranks; all ranks call it."""
        ones = cupy.ones(1, np.float32)
        self.begin(ones, comm).wait()
        return float(ones[0]) == comm.size


def nccl_communicator(comm: MPI.Intracomm) -> Any:
    """Make NCCL's communicator of the same ranks; all ranks call it."""
    own: Any = nccl.get_unique_id()  # bytes since CuPy 14, earlier a tuple of signed numbers
    plain = isinstance(own, bytes)
    told = agree.broadcast_bytes(own if plain else np.array(own, np.int8).tobytes(), comm)
    name = told if plain else tuple(np.frombuffer(told, np.int8).tolist())
    return nccl.NcclCommunicator(comm.size, name, comm.rank)


class NcclSum:
    """One all-reduce under way."""

    def __init__(self, values: Array, path: Nccl, comm: MPI.Intracomm) -> None:
        self._end = path.begin(values, comm)
        self.sent = values.nbytes
        self.moves = 0
        self.coded = 0.0  # NCCL's time for additions is unknown

    def progress(self) -> bool:
        """Test the event; True once the sum is over."""
        over = self._end.done()
        self.moves += over
        return over

    def waiting(self) -> list[PendingMove]:
        return [PendingMove("among", -1, self.sent)]
