"""Compile and start an exchange of packets of known size; compiled code drives it if it can."""

from functools import cache

from mpi4py import MPI

from commsched.exchange.endpoint import Endpoint, ReducingEndpoint
from commsched.kernels import compiled
from commsched.run.engine.prepared_exchange import Landing, Prepared
from commsched.run.engine.script import script
from commsched.run.wire.path import Path
from commsched.schedule.rounds import Schedule


def prepared(
    schedule: Schedule,
    held: Endpoint,
    comm: MPI.Intracomm,
    tag: int,
    path: Path,
    landing: Landing | None = None,
) -> Prepared | None:
    """Compile and start an exchange; return None if its packets cannot be prepared.

    Packets can be prepared if they lie in host memory, have known sizes, and MPI can count them.
    """
    if schedule.library or not path.whole:
        return None
    if not isinstance(held, ReducingEndpoint) or not held.fixed:
        return None
    moves = script(schedule, comm.rank)
    runs = [(send.first, send.stop) for send in moves.sends]
    runs += [(receive.first, receive.stop) for receive in moves.receives]
    if any(held.room(*run, False).nbytes >= path.whole for run in runs):
        return None
    made = driver()(schedule, held, comm, tag, landing or Landing())
    made.start()
    return made


@cache
def driver() -> type[Prepared]:
    """Return the class that drives exchanges here: compiled if the extra is installed, else Python.

    Compiled code is loaded now, because loading it later would delay an exchange.
    """
    chosen = compiled.mode()
    if chosen == "never" or compiled.load(needed=chosen == "always") is None:
        return Prepared
    from commsched.run.engine import compiled_exchange

    compiled_exchange.load()
    return compiled_exchange.CompiledExchange
