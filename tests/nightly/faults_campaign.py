"""Break real MPI jobs in many ways and write the table of docs/how-to/faults.md.

`python -m tests.nightly.faults_campaign -o docs/how-to/faults.md` exits with 1 if a job fails
in another way than expected.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.run.job.launcher import find_mpiexec
from commsched.timeline.parts import find
from tests.support.jobs import MAIN, RUN, Job, Single
from tests.test_faults import BROKEN, written

COMMSCHED = RUN[:-1]
TIMEOUT = 5  # s, of every job
LIMIT = 120.0  # s for a job to end
OLDER = "import commsched; commsched.__version__ = '0.0.1'\n" + MAIN
MISSING = "import sys\nsys.modules[{!r}] = None\n" + MAIN  # a package that is not installed
TRAINING = ["train", "--net", "words:8:300", "--batch", "24", "--method", "ring+dense"]
TRAINING += ["--every", "5", "--timeout", str(TIMEOUT), "--force-size"]
ENDLESS = ("--steps", "200000")  # 40 minutes
Start = Callable[[Path], Job]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and a pattern of what is said of it; "" if only the launcher speaks."""

    name: str
    says: str
    start: Start
    strike: Callable[[Job], None] | None = None  # None: the job is started with its fault
    ready: Callable[[Path], bool] = lambda folder: True
    within: float = 10.0  # s


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened after a fault."""

    fault: Fault
    seconds: float  # until no process of the job was left
    said: str
    left: str
    holds: bool


def words(folder: Path, *more: str, plan: str = "plan.json") -> list[str]:
    """The words of a run that lasts."""
    output = str(folder / "m.json")
    given = ["--timeout", str(TIMEOUT), "--force-size"]
    return ["run", str(folder / plan), "-o", output, *given, *more]


def run(folder: Path) -> Job:
    return Job(3, [*COMMSCHED, *words(folder, *ENDLESS)])


def train(folder: Path, *more: str) -> Job:
    kept = ["--checkpoint", str(folder / "kept"), *ENDLESS, *more]
    return Job(3, [*COMMSCHED, *TRAINING, *kept])


def begun(folder: Path) -> bool:
    parts = find(folder / "m.json")
    return len(parts) == 3 and all(p.read_bytes().count(b"\n") > 20 for p in parts.values())


def kept(folder: Path) -> bool:
    return (folder / "kept" / "manifest.json").exists()


def other(*command: str, more: Sequence[str] = (), plan: str = "plan.json") -> Start:
    """Start a job whose rank 2 runs another command, with the same words and more."""
    return lambda folder: Job(
        [2, 1],
        [*COMMSCHED, *words(folder, *ENDLESS)],
        [*command, *words(folder, *ENDLESS, *more, plan=plan)],
    )


def broken(where: str) -> Start:
    """Start a run whose rank 1 breaks in its third step."""
    more = ["--verify"] if where == "wrong" else []
    return lambda folder: Job(
        3, [sys.executable, "-c", BROKEN, *words(folder, *ENDLESS, *more), where]
    )


def wrong_host(folder: Path) -> Job:
    line = [find_mpiexec(), "-launcher", "fork", "-hosts", "h0,h1", "-n", "1"]
    return Single(*line, *COMMSCHED, *words(folder, *ENDLESS), ":", "-n", "1", "sleep", "1000")


def wrong_first(folder: Path) -> Job:
    return Job([1, 2], ["sleep", "1000"], [*COMMSCHED, *words(folder, *ENDLESS)])


def full_disk(folder: Path) -> Job:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    plan = (folder / "plan.json").read_bytes()
    subprocess.run(mount, check=True)
    (folder / "plan.json").write_bytes(plan)
    return run(folder)


def second(start: Start, ready: Callable[[Path], bool]) -> Start:
    """Start the same job twice; the first one goes on until the second has ended."""

    def started(folder: Path) -> Job:
        first = start(folder)
        first.until(lambda: ready(folder))
        job = start(folder)
        leave = job.__exit__

        def both(*error: object) -> None:
            assert first.process.poll() is None, first.output
            leave(*error)
            first.__exit__()

        job.__class__ = type("Second", (type(job),), {"__exit__": lambda _, *error: both(*error)})
        return job

    return started


def to_rank(number: int, rank: int = 1) -> Callable[[Job], None]:
    return lambda job: os.kill(job.rank(rank), number)


def to_launcher(number: int) -> Callable[[Job], None]:
    return lambda job: job.process.send_signal(number)


def to_proxy(job: Job) -> None:
    parent = Path(f"/proc/{job.rank(1)}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(parent), signal.SIGKILL)


def stopped(text: str) -> Start:
    return other("bash", "-c", text)


RANK_2 = "rank 2 on host"
BY_LAUNCHER = ""
LATE = TIMEOUT + 10.0
FAULTS = (
    Fault(name="unknown command on rank 2", says=f"{RANK_2} .*: no command 'walk'",
          start=other(*COMMSCHED, "walk")),
    Fault(name="unknown option on rank 2", says=f"{RANK_2} .*--nosuch",
          start=other(*COMMSCHED, more=["--nosuch"])),
    Fault(name="unknown option on all ranks", says="rank 0 on host .*--nosuch",
          start=lambda folder: Job(3, [*COMMSCHED, *words(folder, "--nosuch")])),
    Fault(name="rank 2 lacks mpi4py", says=f"{RANK_2} .*: mpi4py is not installed",
          start=other(sys.executable, "-c", MISSING.format("mpi4py"))),
    Fault(name="rank 2 lacks numpy", says=f"{RANK_2} .*: numpy is not installed",
          start=other(sys.executable, "-c", MISSING.format("numpy"))),
    Fault(name="rank 2 is another program, which fails", says=f"{RANK_2} .* ended before MPI",
          start=other("false")),
    Fault(name="rank 2 is another program, which ends well", says=f"{RANK_2} .* ended before MPI",
          start=other("true")),
    Fault(name="rank 2 is another program, which goes on",
          says="rank 0 .*: rank 2 on this host has not started commsched",
          start=stopped("sleep 1000")),
    Fault(name="rank 0 is another program, which goes on",
          says="rank 1 .*: rank 0 on this host has not started commsched", start=wrong_first),
    Fault(name="all ranks of another host are another program",
          says="rank 0 .*: rank 1 on another host has not started commsched", start=wrong_host),
    Fault(name="rank 2 has other `--steps`", says=f"differ in --steps: {RANK_2}",
          start=other(*COMMSCHED, more=["--steps", "7"])),
    Fault(name="rank 2 has `--verify`", says=f"differ in --verify: {RANK_2}",
          start=other(*COMMSCHED, more=["--verify"])),
    Fault(name="rank 2 has `--replan`", says=f"differ in --replan: {RANK_2}",
          start=other(*COMMSCHED, more=["--replan"])),
    Fault(name="rank 2 has another plan", says=f"differ in the plan: {RANK_2}",
          start=other(*COMMSCHED, plan="other.json")),
    Fault(name="rank 2 has another version", says=f"differ in the version of commsched: {RANK_2}",
          start=other(sys.executable, "-c", OLDER)),
    Fault(name="a rank gets SIGKILL", says="rank 1 on host .* was killed by SIGKILL",
          start=run, ready=begun, strike=to_rank(signal.SIGKILL)),
    Fault(name="a rank crashes (SIGSEGV)", says="rank 1 on host .* was killed by SIGSEGV",
          start=run, ready=begun, strike=to_rank(signal.SIGSEGV)),
    Fault(name="a rank gets SIGTERM", says="rank 1 on host .* was killed by SIGTERM",
          start=run, ready=begun, strike=to_rank(signal.SIGTERM)),
    Fault(name="a rank gets SIGSTOP", says="rank 1 does not answer",
          start=run, ready=begun, strike=to_rank(signal.SIGSTOP), within=LATE),
    Fault(name="rank 0 gets SIGSTOP", says="rank 0 does not answer",
          start=run, ready=begun, strike=to_rank(signal.SIGSTOP, 0), within=LATE),
    Fault(name="the launcher's proxy gets SIGKILL", says=BY_LAUNCHER,
          start=run, ready=begun, strike=to_proxy),
    Fault(name="mpiexec gets SIGKILL", says=BY_LAUNCHER,
          start=run, ready=begun, strike=to_launcher(signal.SIGKILL)),
    Fault(name="mpiexec gets SIGTERM", says=BY_LAUNCHER,
          start=run, ready=begun, strike=to_launcher(signal.SIGTERM)),
    Fault(name="mpiexec gets SIGINT", says=BY_LAUNCHER,
          start=run, ready=begun, strike=to_launcher(signal.SIGINT)),
    Fault(name="a bug on one rank", says="rank 1: Traceback", start=broken("gradient")),
    Fault(name="NaN in a gradient", says="rank 1: step 2: the gradient of tensor .* has nan",
          start=broken("nan")),
    Fault(name="a wrong sum, with `--verify`", says="step 0, b1: element", start=broken("wrong")),
    Fault(name="the disk is full", says="No space left on device", start=full_disk, within=60.0),
    Fault(name="two runs to one file", says="m.json is in use by another job: process",
          start=second(run, begun), within=15.0),
    Fault(name="two trainings with one checkpoint folder",
          says="kept is in use by another job: process",
          start=second(train, kept), within=15.0),
    Fault(name="a rank of a training gets SIGKILL", says="rank 1 on host .* was killed by SIGKILL",
          start=train, ready=kept, strike=to_rank(signal.SIGKILL)),
)  # fmt: skip


def inflict(fault: Fault, folder: Path) -> Outcome:
    """Start a job, break it, and look at how it ends."""
    try:
        return _inflict(fault, folder)
    finally:
        if folder.is_mount():
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _inflict(fault: Fault, folder: Path) -> Outcome:
    written(folder / "plan.json", lanes=3)
    written(folder / "other.json", lanes=3, seed=1)
    begin = time.monotonic()
    with fault.start(folder) as job:
        if fault.strike is not None:
            job.until(lambda: fault.ready(folder))
            begin = time.monotonic()
            fault.strike(job)
        else:
            begin = max(begin, time.monotonic() - 1.0)  # not the start of a job beside it
        status = job.wait(LIMIT).status
        remain = job.left()
        seconds = time.monotonic() - begin
        lines = [x[11:] for x in job.output.splitlines() if x.startswith("commsched: ")]
        match = [x for x in lines if re.search(fault.says, x)] if fault.says else []
        ended = status != 0 and not remain and seconds < fault.within
        holds = ended and bool(match or not fault.says)
        said = f"`{brief(match[0])}`" if match else "the launcher's own message"
        if not holds:
            print(job.output, file=sys.stderr)
        return Outcome(fault=fault, seconds=seconds, said=said, left=left(folder), holds=holds)


def brief(line: str) -> str:
    line = re.sub(r"/\S+/", "", line)
    return line if len(line) < 110 else line[:107] + "..."


def left(folder: Path) -> str:
    """What a job has left in its folder."""
    found = []
    parts = find(folder / "m.json")
    if parts:
        found.append(f"spans of {len(parts)} ranks")
    if kept(folder):
        found.append("the last complete checkpoint")
    return " and ".join(found) or "nothing"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    rows = [
        f"| {each.fault.name} | {each.seconds:.1f} s | {each.said} | {each.left} |"
        for each in outcomes
    ]
    head = ["| fault | over after | what is said | what is left |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def main() -> int:
    """Inflict all faults, or those whose name contains the first argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="part of the names of faults")
    parser.add_argument("-o", "--output", type=Path, help="page whose table is replaced")
    args = parser.parse_args()
    outcomes = []
    for fault in FAULTS:
        if args.name not in fault.name or (fault.start is full_disk and os.geteuid() != 0):
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(inflict(fault, Path(folder)))
        print(table(outcomes[-1:]).splitlines()[-1], outcomes[-1].holds, flush=True)
    if args.output is not None:
        text = args.output.read_text()
        head, _, rest = text.partition("| fault |")
        tail = re.sub(r"\A(.*\n)(\|.*\n)*", "", rest)
        args.output.write_text(head + table(outcomes) + "\n" + tail)
    return 0 if all(each.holds for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
