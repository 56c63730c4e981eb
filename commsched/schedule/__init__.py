"""Routes: which rank sends which blocks to whom, as rounds of integer arrays."""

from commsched.schedule.check import check, exclusive
from commsched.schedule.rounds import Goal, Round, Rows, Schedule
from commsched.schedule.text import dumps
from commsched.schedule.view import Move, moves_of

__all__ = ["Goal", "Move", "Round", "Rows", "Schedule", "check", "dumps", "exclusive", "moves_of"]
