"""Proofs about a schedule by a symbolic run, which moves sets of ranks instead of numbers."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Ints
from commsched.errors import CommschedError
from commsched.schedule.rounds import Goal, Round, Schedule
from commsched.schedule.text import blocks_text

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
REDUCES = (Goal.ALL_REDUCE, Goal.REDUCE_SCATTER)


def check(schedule: Schedule) -> None:
    """Prove that the schedule reaches its goal, or raise a `CommschedError` that says where not.

    Every rank's contribution to every block is one bit. The rules: in a round a rank sends at most
    one move and receives at most one, never to itself, never empty or out of range; a rank sends
    only what it holds; an addition counts nobody twice; a replacement loses nobody; `merged` is the
    number of ranks in the sent blocks; a rank sends no block that it received after the rounds that
    it `waits` for, and sends at least one block of its last receive in these rounds; at the end the
    goal holds. A repeated replacement breaks no rule. Data races need no rule: a round sends the
    data from before the round.

    Memory: ranks² * blocks / 8 bytes for sums, ranks * blocks * 8 bytes for gathers, and ranks *
    blocks * 4 bytes. A schedule without rounds (the MPI library's own) has nothing to prove.
    """
    _check_header(schedule)
    if schedule.library:
        return
    held = _at_the_start(schedule)
    full = np.bitwise_or.reduce(held, axis=0)  # (blocks, words)
    waiting = _Waiting(schedule)
    for index, round_ in enumerate(schedule.rounds()):
        where = f"{schedule.name}, round {index}"
        _check_form(round_, schedule, where)
        waiting.check(round_, index, where)
        _apply(round_, held, schedule.goal, where)
    _check_goal(schedule, full & ~held)


def exclusive(schedule: Schedule) -> bool:
    """Tell whether, while sums are made, each contribution to a block lies in one rank's sum only.

    Lossy merging with error feedback needs this: only the rank that merges keeps the loss. An added
    block counts as given away by its sender, who may neither send it again for adding nor add to
    it; a replacement ends the summing of its blocks on both ranks. True for a schedule that only
    gathers, False for the MPI library's own. The schedule must pass `check`.
    """
    if schedule.library:
        return False
    gone = np.zeros((schedule.ranks, schedule.blocks), dtype=np.bool_)
    for round_ in schedule.rounds():
        move, block = _each_block(round_)
        src, dst = round_.src[move], round_.dst[move]
        if round_.add and gone[src, block].any():
            return False
        gone[src, block] = True
        if round_.add and gone[dst, block].any():
            return False
        if not round_.add:
            gone[dst, block] = True
    return True


class _Blocks(NamedTuple):
    """The moves of a round block by block, (n,) each."""

    move: Ints  # place of the move in its round
    block: Ints


def _each_block(round_: Round) -> _Blocks:
    lengths = round_.stop - round_.first
    before = np.cumsum(lengths) - lengths
    move = np.repeat(np.arange(len(lengths)), lengths)
    return _Blocks(move, np.arange(len(move)) + (round_.first - before)[move])


def _check_header(schedule: Schedule) -> None:
    name, ranks, blocks = schedule.name, schedule.ranks, schedule.blocks
    if ranks < 1 or blocks < 1:
        raise CommschedError(
            f"{name}: ranks and blocks must be at least 1, got {ranks} ranks and {blocks} blocks"
        )
    if schedule.goal == Goal.ALL_TO_ALL and blocks != ranks**2:
        raise CommschedError(
            f"{name}: an all-to-all of {ranks} ranks has {ranks**2} blocks, got {blocks}"
        )
    if schedule.goal in (Goal.REDUCE_SCATTER, Goal.ALL_GATHER, Goal.BROADCAST):
        owner = schedule.owner
        if owner is None or owner.shape != (blocks,) or ((owner < 0) | (owner >= ranks)).any():
            raise CommschedError(
                f"{name}: owner must name a rank (0..{ranks - 1}) for each of {blocks} blocks"
            )
    if schedule.library and schedule.goal != Goal.ALL_REDUCE:
        raise CommschedError(f"{name}: only an all-reduce can be left to the MPI library")


def _at_the_start(schedule: Schedule) -> Words:
    """Return (ranks, blocks, words): bit r of (rank, block) = rank r's contribution is included.

    In a gather a block has one contribution, its owner's, which is bit 0.
    """
    rank, block = np.arange(schedule.ranks), np.arange(schedule.blocks)
    reduces = schedule.goal in REDUCES
    words = (schedule.ranks + 63) // 64 if reduces else 1
    held = np.zeros((schedule.ranks, schedule.blocks, words), dtype=np.uint64)
    if reduces:
        held[rank, :, rank // 64] = (np.uint64(1) << (rank % 64).astype(np.uint64))[:, np.newaxis]
    elif schedule.goal == Goal.ALL_TO_ALL:
        held[block // schedule.ranks, block, 0] = 1
    else:
        held[schedule.owner, block, 0] = 1
    return held


def _check_form(round_: Round, schedule: Schedule, where: str) -> None:
    """Check everything that does not depend on the data: shapes, ranges, senders and receivers."""
    src, dst, first, stop = round_[:4]
    count = len(src)
    if not all(isinstance(x, np.ndarray) and x.shape == (count,) for x in round_[:4]):
        raise CommschedError(f"{where}: src, dst, first and stop must be arrays of one length")
    if not all(np.issubdtype(x.dtype, np.integer) for x in round_[:4]):
        raise CommschedError(f"{where}: src, dst, first and stop must be integers")
    if np.shape(round_.merged) not in ((), (count,)):
        raise CommschedError(f"{where}: merged must be one number or one per move")
    if not count:
        raise CommschedError(f"{where}: has no moves; leave the round out")
    for side, verb in ((src, "sends"), (dst, "receives")):
        outside = (side < 0) | (side >= schedule.ranks)
        if outside.any():
            raise CommschedError(
                f"{where}: rank {side[outside][0]} {verb}; ranks are 0..{schedule.ranks - 1}"
            )
        twice = np.bincount(side) > 1
        if twice.any():
            raise CommschedError(f"{where}: rank {twice.argmax()} {verb} twice; use one more round")
    if (src == dst).any():
        raise CommschedError(f"{where}: rank {src[src == dst][0]} sends to itself")
    rows = round_.rows
    if rows is not None and not all(
        np.array_equal(table[rows.start : rows.start + count], column)
        for table, column in ((rows.first, first), (rows.stop, stop))
    ):
        raise CommschedError(f"{where}: first and stop are not the rows of their tables")
    outside = (first < 0) | (first >= stop) | (stop > schedule.blocks)
    if outside.any():
        move = int(outside.argmax())
        raise CommschedError(
            f"{where}: rank {src[move]} sends blocks [{first[move]}, {stop[move]});"
            f" a run must not be empty, and blocks are 0..{schedule.blocks - 1}"
        )


class _Waiting:
    """Proves that a round waits exactly for the receives that it needs, with one clock per rank."""

    def __init__(self, schedule: Schedule) -> None:
        # The number of rounds after which each block was last received; 0: never.
        self.when = np.zeros((schedule.ranks, schedule.blocks), dtype=np.int32)
        self.last = np.zeros((2, schedule.ranks), dtype=np.int64)  # last run received, or empty
        self.kept = 0, self.last  # the rounds that a `waits` names, and `last` after them

    def check(self, round_: Round, index: int, where: str) -> None:
        """Check round number `index`, then note what it receives."""
        waits = index if round_.waits is None else round_.waits
        if waits != 0:
            if round_.waits == index and self.kept[0] != index:
                self.kept = index, self.last.copy()
            if waits not in (index, self.kept[0]):
                raise CommschedError(
                    f"{where}: waits must be 0, {index} (all rounds before), or the last other"
                    f" value, {self.kept[0]}; got {waits}"
                )
            last = self.last if waits == index else self.kept[1]
            _check_needs(round_, last[:, round_.src], where)
        move, block = at = _each_block(round_)
        late = self.when[round_.src[move], block]
        if (late > waits).any():
            text = f"it was received in round {late.max() - 1}, but waits says {waits}"
            _fail(round_, at, late == late.max(), where, text)
        self.when[round_.dst[move], block] = index + 1
        self.last[:, round_.dst] = round_.first, round_.stop


def _check_needs(round_: Round, last: Ints, where: str) -> None:
    """Check `last`: (2, m) first and stop of the senders' last receives before this round."""
    first, stop = last
    free = (first < stop) & ((round_.stop <= first) | (stop <= round_.first))
    if free.any():
        move = int(free.argmax())
        raise CommschedError(
            f"{where}: rank {round_.src[move]} waits for"
            f" {_block_text(first[move], stop[move])} before it sends"
            f" {_block_text(round_.first[move], round_.stop[move])}, which does not depend on it;"
            f" change the order of the rounds, or say what this one `waits` for"
        )


def _apply(round_: Round, held: Words, goal: Goal, where: str) -> None:
    """Do one round on `held`, in place."""
    move, block = at = _each_block(round_)
    dst = round_.dst[move]
    sent, here = held[round_.src[move], block], held[dst, block]
    nothing: Flags = np.logical_not(sent.any(axis=1))
    if nothing.any():
        _fail(round_, at, nothing, where, "the sender does not hold it")
    if round_.add and goal not in REDUCES:
        raise CommschedError(f"{where}: adds, but the goal is {goal}")
    merged = np.bitwise_count(sent).sum(axis=1)
    claimed = np.broadcast_to(round_.merged, round_.src.shape)[move]
    wrong: Flags = np.not_equal(merged, claimed)
    if wrong.any():
        worst = int(wrong.argmax())
        text = f"it sums {merged[worst]} ranks, but merged says {claimed[worst]}"
        _fail(round_, at, wrong, where, text)
    bad = sent & here if round_.add else here & ~sent
    entry: Flags = np.asarray(bad.any(axis=1))
    if entry.any():
        rank = _lowest(bad[int(entry.argmax())])
        verb = "added twice" if round_.add else "lost"
        _fail(round_, at, entry, where, f"the data of rank {rank} would be {verb}")
    held[dst, block] = sent | here


def _fail(round_: Round, at: _Blocks, entries: Flags, where: str, text: str) -> None:
    """Raise an error about the first of the marked blocks."""
    entry = int(entries.argmax())
    move, block = at.move[entry], at.block[entry]
    raise CommschedError(
        f"{where}: block {block} from rank {round_.src[move]} to rank {round_.dst[move]}: {text}"
    )


def _check_goal(schedule: Schedule, missing: Words) -> None:
    """Check `missing`: (ranks, blocks, words), contributions that a rank would still need."""
    lacks = missing.any(axis=2)
    block = np.arange(schedule.blocks)
    wanted = np.zeros_like(lacks)
    if schedule.goal == Goal.REDUCE_SCATTER:
        wanted[schedule.owner, block] = True
    elif schedule.goal == Goal.ALL_TO_ALL:
        wanted[block % schedule.ranks, block] = True
    else:
        wanted[:] = True
    lacks &= wanted
    if lacks.any():
        rank, which = np.argwhere(lacks)[0]
        what = f"block {which}"
        if schedule.goal in REDUCES:
            what = f"the data of rank {_lowest(missing[rank, which])} in {what}"
        raise CommschedError(f"{schedule.name}: rank {rank} ends without {what}")


def _lowest(words: Words) -> int:
    """Return the lowest rank whose bit is set."""
    word = int((words != 0).argmax())
    bits = int(words[word])
    return word * 64 + (bits & -bits).bit_length() - 1


def _block_text(first: int, stop: int) -> str:
    return f"block{'s' if stop > first + 1 else ''} {blocks_text(first, stop)}"
