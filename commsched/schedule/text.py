"""Schedules as text, small enough to check by eye: `0>1:2+` = rank 0 sends block 2, rank 1 adds."""

from commsched.schedule.rounds import Round, Schedule


def dumps(schedule: Schedule) -> str:
    """Write a header and one line per round, its moves sorted by sender.

    `0>1:2-5` is one message with blocks 2 to 5, which replaces; a `+` at the end adds. `waits=3`
    ends a round that waits only for receives of the first 3 rounds. A schedule without rounds (the
    MPI library's own) is its header alone.
    """
    lines = [
        f"{schedule.name} goal={schedule.goal} ranks={schedule.ranks} blocks={schedule.blocks}"
    ]
    if not schedule.library:
        lines += [_line(round_) for round_ in schedule.rounds()]
    return "\n".join(lines) + "\n"


def _line(round_: Round) -> str:
    end = "+" if round_.add else ""
    columns = (round_.src, round_.dst, round_.first, round_.stop)
    moves = sorted(zip(*(column.tolist() for column in columns), strict=True))
    words = [f"{src}>{dst}:{blocks_text(first, stop)}{end}" for src, dst, first, stop in moves]
    if round_.waits is not None:
        words.append(f"waits={round_.waits}")
    return " ".join(words)


def blocks_text(first: int, stop: int) -> str:
    """Name the blocks [first, stop) as a golden does: `2`, or `2-5` with both ends included."""
    return f"{first}" if stop == first + 1 else f"{first}-{stop - 1}"
