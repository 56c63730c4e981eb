"""A small process beside a rank that reports if the rank is killed or other ranks never arrive.

It runs as a script and imports nothing of this package. From a pipe it reads MET, once MPI has
begun; NOTE and a line to print if the rank is killed; ENDS, before the rank ends normally; or the
end of the pipe. Arguments: rank, host, pid of the rank, descriptor of Hydra's process manager or
NOBODY, seconds of patience until MPI begins.
"""

import contextlib
import os
import select
import signal
import stat
import struct
import sys
import time

MET, ENDS, NOTE = b"m", b"e", b"n"
NOBODY = -1
GET_INFO, EXIT, INFO = 0xC040FF0B, 8, "QQ11Ii"  # of pidfd: linux/pidfd.h, with exit_code last
ABORT = b"cmd=abort exitcode=2\n"  # of PMI 1
PROXY = "hydra_pmi_proxy"  # Hydra's process on each host: the parent of the ranks there
LOOK = 0.25  # s between looks at the other ranks of this host, until MPI begins
DYING = 5.0  # s for the system to end a process whose files are closed; longer on a busy system
ABORTED = 0.25  # s in which all ranks end after one has called MPI_Abort
HEARD = 2.0  # s for the launcher to read the printed line


def main(rank: str, host: str, pid: int, manager: int, patience: float) -> None:
    """Wait for the end of the rank, or for a reason that its job cannot begin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank gets it, too
    with contextlib.suppress(PermissionError):  # to print before the launcher ends all that is here
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    me, launcher = f"rank {rank} on host {host}", int(process_stat(pid, 3))
    watched = _opened(pid)
    with contextlib.suppress(OSError):  # the rank has ended
        os.write(1, MET)  # tells the rank that this process watches
    end, lost_before, met, note = time.monotonic() + patience, "", False, ""
    while True:
        if select.select([0], [], [], None if met else LOOK)[0]:
            word = os.read(0, 1)
            if word == b"" and manager != NOBODY and (how := _cause(pid, watched, launcher)):
                _say(f"{me} (process {pid}) {how}{note and f'; {note}'}")
            if word == NOTE:
                note = _line()
            elif word != MET:
                return
            met = True
            continue
        lost = _lost(launcher, rank)
        if lost and lost == lost_before:  # twice: a launcher starts its ranks one after the other
            _say(f"{lost} on host {host} ended before MPI began: see what it said, or its command")
        elif time.monotonic() > end:
            _say(f"{me}: MPI has not begun after {patience:g} s: not all ranks have come")
        else:
            lost_before = lost
            continue
        if manager != NOBODY:
            os.write(manager, ABORT)
            time.sleep(HEARD)
        _kill(pid, watched)
        return


def _line() -> str:
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    return line.decode(errors="replace").strip()


def _opened(pid: int) -> int:
    """Return a descriptor that tells how a process ended, even after a parent's wait; or NOBODY."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or too old
        return NOBODY


def _kill(pid: int, watched: int) -> None:
    """Kill the rank, but no later process with its pid."""
    with contextlib.suppress(OSError):  # it has ended
        if watched == NOBODY:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(watched, signal.SIGKILL)


def _status(watched: int) -> int | None:
    """Return how the process of a descriptor ended, as `wait` does; None if Linux cannot tell."""
    import fcntl

    info = bytearray(struct.pack(INFO, EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(watched, GET_INFO, info)
    except OSError:  # before Linux 6.15
        return None
    mask, *_, status = struct.unpack(INFO, info)
    return int(status) if mask & EXIT else None


def _cause(pid: int, watched: int, launcher: int) -> str:
    """Say how a rank has ended; "" if it ended with its launcher, or with all others here."""
    status, begin = None, time.monotonic()
    if watched != NOBODY and select.select([watched], [], [], DYING)[0]:
        status = _status(watched)
    while status is None and time.monotonic() < begin + DYING and (fields := process_fields(pid)):
        if fields[0] == "Z":  # lasts microseconds, until the launcher reads the status
            status = int(fields[-1])
    if status and os.WIFSIGNALED(status):  # at once, before other ranks fail because of it
        gone = process_stat(launcher, 2) in ("0", "Z")
        return "" if gone else f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    time.sleep(max(0.0, begin + ABORTED - time.monotonic()))
    if not ranks_here(launcher):
        return ""
    return "is gone" if status is None else f"ended with status {os.WEXITSTATUS(status)}"


def _lost(launcher: int, rank: str) -> str:
    """Name a rank of this host that has ended, if this rank is the first living one here."""
    living = ranks_here(launcher)
    here = int(os.environ.get("MPI_LOCALNRANKS", "0"))
    if not living or len(living) >= here or int(rank) != min(each for each, _ in living):
        return ""
    offsets = {each - local for each, local in living}
    lost = set(range(here)) - {local for _, local in living}
    return f"rank {min(offsets) + min(lost)}" if len(offsets) == 1 and lost else "a rank"


def ranks_here(launcher: int) -> list[tuple[int, int]]:
    """Return the living ranks of this host, and their numbers here; none if Hydra cannot tell."""
    try:
        if _read(f"/proc/{launcher}/comm").strip() != PROXY:
            return []
        children = _read(f"/proc/{launcher}/task/{launcher}/children").split()
        found = [_variables(child) for child in children if process_stat(int(child), 2) != "Z"]
        return [(int(each["PMI_RANK"]), int(each["MPI_LOCALRANKID"])) for each in found]
    except (OSError, KeyError):  # a process has just ended
        return []


def _variables(process: str) -> dict[str, str]:
    words = _read(f"/proc/{process}/environ").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def process_stat(pid: int, field: int) -> str:
    """Return a field of proc(5)'s stat, counted from 0; "0" after the process's end."""
    return dict(enumerate(process_fields(pid), 2)).get(field, "0")


def process_fields(pid: int) -> list[str]:
    """Return the fields of proc(5)'s stat from the state to the exit code; none after the end."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return []


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _say(text: str) -> None:
    os.write(2, f"commsched: {text}\n".encode())
    be_heard(HEARD)
    time.sleep(LOOK)  # for mpiexec to be informed by its process on this host


def be_heard(patience: float) -> None:
    """Wait until the launcher has read this process's output; after an abort it stops reading."""
    import fcntl  # only ranks need both
    import termios

    out = 2  # even if a test has replaced sys.stderr
    if not stat.S_ISFIFO(os.fstat(out).st_mode):
        return
    end, unread = time.monotonic() + patience, bytearray(4)
    while time.monotonic() < end:
        fcntl.ioctl(out, termios.FIONREAD, unread)
        if not any(unread):
            return
        time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
