"""Run a job for a long time at a low rate, and tell the memory, files and threads of each rank.

    python tests/nightly/soak.py --seconds 28800 -o SAMPLES.jsonl [--ranks 2] [--step 0.1]
    python tests/nightly/soak.py --seconds 400 --step 0.0004 --layers 1 --methods dsar -o OUT.jsonl
    python tests/nightly/soak.py --table SAMPLES.jsonl

The ranks emulate steps of `--step` seconds, at least, and yield to everything else (nice 19); the
second line's 1,000,000 steps vote in each step. Exit status 1:
memory, files or threads of a rank grew, over the second half of the run, by more than LIMITS. The
column `most` includes the end, when the spans are merged.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from commsched.plan import file as plan_file
from tests.support.jobs import RUN, Job
from tests.support.small_plans import graph, machine, plan

METHODS = "ring+dense,all-gather+topk:0.1"  # a bucket for each
LAYERS = 4  # of the emulated net; backward takes twice as long as forward
SAMPLES = 500  # of a run
LIMITS = {"memory": 2**22, "files": 0, "threads": 0}  # B and numbers, from the middle to the end
UNITS = {"memory": 2**20, "files": 1, "threads": 1}


def main() -> int:
    """Run or print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=28800.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--methods", default=METHODS, metavar="M,...")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--table", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.output is not None and soak(args):
        return 1
    return table([json.loads(line) for line in (args.table or args.output).open()])


def soak(args: argparse.Namespace) -> int:
    """Run the job, append samples of each rank to the file, return its exit status."""
    methods, ranks, seconds = args.methods.split(","), args.ranks, args.seconds
    layers = args.layers
    with tempfile.TemporaryDirectory() as folder, args.output.open("w") as file:
        made, steps = Path(folder) / "plan.json", round(seconds / args.step)
        net = graph([500] * layers, seconds=args.step / layers / 3)
        plan_file.write(made, plan(net, machine(1, ranks), methods))
        words = [*RUN, str(made), "-o", str(Path(folder) / "m.json")]
        words += ["--steps", str(steps), "--force-size"]
        with Job(ranks, ["nice", "-n", "19", *words]) as job:
            for line in watched(job, ranks, max(1.0, seconds / SAMPLES)):
                file.write(json.dumps(line) + "\n")
                file.flush()
            print(job.output, end="")
            return job.process.returncode


def watched(job: Job, ranks: int, pause: float) -> Iterator[dict[str, float]]:
    """Yield samples of each rank, every `pause` s until the job has ended."""
    job.until(lambda: len([r for r in job.processes().values() if r is not None]) >= ranks)
    begun, pids = time.monotonic(), {rank: job.rank(rank) for rank in range(ranks)}
    while job.process.poll() is None:
        now = time.monotonic() - begun
        for rank, pid in pids.items():
            found = sample(pid)
            if found:
                yield {"seconds": round(now, 1), "rank": rank, **found}
        time.sleep(pause)


def sample(pid: int) -> dict[str, int]:
    """Return memory [B], its largest value so far, files and threads of a process, if it lives."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        known = dict(line.split(":", 1) for line in lines)
        return {
            "memory": int(known["VmRSS"].split()[0]) * 1024,
            "most": int(known["VmHWM"].split()[0]) * 1024,
            "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(known["Threads"]),
        }
    except (OSError, KeyError):
        return {}


def table(samples: Sequence[dict[str, float]]) -> int:
    """Print what changed over the second half of the run; return 1 if it grew."""
    grew = False
    print(f"{'rank':>4}  {'what':8}{'middle':>9}{'end':>9}{'per hour':>10}{'most':>9}")
    for rank in sorted({line["rank"] for line in samples}):
        own = [line for line in samples if line["rank"] == rank]
        threads = [line["threads"] for line in own]
        running = own[: len(own) - threads[::-1].index(max(threads))]  # the merge has fewer
        half = running[len(running) // 2 :]
        hours = np.array([line["seconds"] for line in half]) / 3600
        for what, limit in LIMITS.items():
            values = np.array([line[what] for line in half]) / UNITS[what]
            slope = float(np.polyfit(hours, values, 1)[0])
            most = max(line["most" if what == "memory" else what] for line in own) / UNITS[what]
            print(f"{rank:4}  {what:8}{values[0]:9.2f}{values[-1]:9.2f}{slope:10.3f}{most:9.2f}")
            grew |= slope * (hours[-1] - hours[0]) > limit / UNITS[what] + 1e-6
    print(f"from {half[0]['seconds']:.0f} s to {half[-1]['seconds']:.0f} s; memory in MiB")
    return int(grew)


if __name__ == "__main__":
    raise SystemExit(main())
