"""Compiled code for `run.engine.prepared`: moves, adds and waits without the interpreter's lock.

MPI and the system are called by the addresses of their functions, so that compiled code can be kept
from one process to the next.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from commsched.arrays import Array, Floats, Ints
from commsched.kernels.jit import kernel

OVER, WAITS, MERGE, TAKE, FAILED = range(5)  # how `drive` ends
START, TEST, YIELD, SLEEP, CLOCK, WHICH = range(6)  # functions of `calls`, and which clock
REQUEST, AFTER = range(2)  # of a send: address of its request or 0, receives merged before it
IN_PLACE, MERGED, SENT, INTO, FROM, COUNT = range(1, 7)  # of a receive, after REQUEST
ISSUED, LEFT, POSTED, SUMMED, MOVES, ERROR, ADDED = range(7)  # progress, and ns of additions
PATIENCE, SPIN, SHARE, NAP, LONGEST = range(5)  # of a pace, see `Unlocked.wait`


def _call(typing: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call a function of C by its address with up to three words; return its int."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * 3)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int32(*[types.int64] * 4), generate


def _floats(typing: Any, address: Any) -> Any:
    """Return a pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    pointer: Any = types.CPointer(types.float32)  # type: ignore[no-untyped-call]
    return pointer(types.int64), generate


call: Any = intrinsic(_call)
floats: Any = intrinsic(_floats)


@kernel
def _over(calls: Ints, request: int, at: Ints, answer: Ints) -> bool:
    """Test a request; note an error of MPI."""
    word = answer.ctypes.data
    wrong = call(calls[TEST], request, word, word + 8)
    if wrong:
        at[ERROR] = wrong
    return bool(wrong == 0 and answer.view(np.int32)[0] != 0)


@kernel
def _start(calls: Ints, request: int, at: Ints) -> None:
    wrong = call(calls[START], request, 0, 0)
    if wrong:
        at[ERROR] = wrong


@kernel
def _have_left(calls: Ints, sends: Ints, at: Ints, answer: Ints, number: int) -> bool:
    while at[LEFT] < number:
        if at[LEFT] == at[ISSUED] or not _over(calls, sends[at[LEFT], REQUEST], at, answer):
            return False
        at[LEFT] += 1
    return True


@kernel
def _seconds(calls: Ints, answer: Ints) -> float:
    call(calls[CLOCK], calls[WHICH], answer.ctypes.data, 0)
    return float(answer[0] + 1e-9 * answer[1])


@kernel
def _add(calls: Ints, receive: Ints, at: Ints, answer: Ints) -> None:
    """Add a packet to its blocks, one float32 after the other."""
    begun = _seconds(calls, answer)
    into = carray(floats(receive[INTO]), receive[COUNT])
    came = carray(floats(receive[FROM]), receive[COUNT])
    for i in range(len(into)):
        into[i] += came[i]
    at[ADDED] += int(1e9 * (_seconds(calls, answer) - begun))


@kernel
def _move(calls: Ints, sends: Ints, receives: Ints, at: Ints, ahead: int, answer: Ints) -> int:
    """Post, send and merge all that is ready; return WAITS, or MERGE or TAKE for Python's work."""
    moved = True
    while moved:
        moved = False
        while at[POSTED] < min(len(receives), at[SUMMED] + ahead):
            receive = receives[at[POSTED]]
            if receive[IN_PLACE] and (
                at[SUMMED] < receive[MERGED]
                or not _have_left(calls, sends, at, answer, receive[SENT])
            ):
                break
            _start(calls, receive[REQUEST], at)
            at[POSTED] += 1
            moved = True
        while at[ISSUED] < len(sends) and sends[at[ISSUED], AFTER] <= at[SUMMED]:
            if sends[at[ISSUED], REQUEST] == 0:
                return TAKE
            _start(calls, sends[at[ISSUED], REQUEST], at)
            at[ISSUED] += 1
            moved = True
        while at[SUMMED] < at[POSTED]:
            receive = receives[at[SUMMED]]
            if not _have_left(calls, sends, at, answer, receive[SENT]):
                break
            if not _over(calls, receive[REQUEST], at, answer):
                break
            if receive[COUNT] < 0:
                return MERGE
            if receive[COUNT] > 0:
                _add(calls, receive, at, answer)
            at[SUMMED] += 1
            moved = True
        at[MOVES] += moved
        if at[ERROR]:
            return FAILED
    return WAITS


@kernel
def drive(
    calls: Ints,
    sends: Ints,
    receives: Ints,
    at: Ints,
    ahead: int,
    pace: Floats,
    waited: float,
    changed: Array,
) -> int:
    """Drive an exchange for up to pace[PATIENCE] s; return how it ended.

    sends (n, 2), receives (m, 7), at (7,), pace (5,): columns as above. changed (1,) uint8: not 0
    if the caller has other work. The loop polls and sleeps as `wait_for_messages.Pacer` does.
    """
    answer = np.zeros(20, np.int64)  # flag or time, then MPI's status
    code = _move(calls, sends, receives, at, ahead, answer)
    if code == WAITS and pace[PATIENCE] > 0.0:
        moves, begun = at[MOVES], _seconds(calls, answer)
        quiet = begun - waited
    while code == WAITS:
        if at[SUMMED] == len(receives) and _have_left(calls, sends, at, answer, len(sends)):
            code = OVER
            break
        if at[ERROR]:
            code = FAILED
            break
        if pace[PATIENCE] == 0.0 or changed[0]:
            break
        moment = _seconds(calls, answer)
        if at[MOVES] != moves:
            moves, quiet = at[MOVES], moment
        if moment - begun > pace[PATIENCE]:
            break
        if moment - quiet < pace[SPIN]:
            call(calls[YIELD], 0, 0, 0)
        else:
            rest = min(max(pace[NAP], pace[SHARE] * (moment - quiet)), pace[LONGEST])
            answer[0], answer[1] = 0, int(1e9 * rest)
            call(calls[SLEEP], answer.ctypes.data, 0, 0)
        code = _move(calls, sends, receives, at, ahead, answer)
    return code
