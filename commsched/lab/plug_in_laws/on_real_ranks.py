"""The run of a plug-in's method on real ranks of this machine, with each sum checked."""

from pathlib import Path
from tempfile import TemporaryDirectory

from commsched.errors import CommschedError
from commsched.lab.plug_in_laws.finding import Finding, Skipped, examined
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.generate.transformer import gpt
from commsched.plan import file as plan_file
from commsched.planner.make_plan import make_plan
from commsched.planner.only_methods import only
from commsched.planner.request import Request
from commsched.run.job import start as job
from commsched.run.job.launcher import find_mpiexec
from commsched.timeline import file as timeline_file
from commsched.timeline.summary import summary

RANKS, STEPS, LIMIT = 4, 3, 120.0
NET = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 8, "vocabulary": 64, "batch": 1}


def law(method: str) -> Finding:
    """Run a small plan that uses only this method."""
    return examined(f"run on {RANKS} ranks", lambda: _run(method))


def _run(method: str) -> str:
    try:
        find_mpiexec()
    except (CommschedError, ModuleNotFoundError) as error:
        raise Skipped(f"no MPI: {error}") from None
    machine = resized(machine_file.load("localhost"), 1, RANKS)
    try:
        wanted = only(Request(net=gpt("small", **NET), machine=machine), [method])
    except CommschedError as error:
        raise Skipped(str(error)) from None
    with TemporaryDirectory(prefix="commsched-check-") as folder:
        plan, measured = Path(folder) / "plan.json", Path(folder) / "measured.json"
        plan_file.write(plan, make_plan(wanted))
        words = ["run", str(plan), "-o", str(measured), "--steps", str(STEPS), "--verify"]
        job.commsched(RANKS, words, LIMIT, quiet=True)
        verified = summary(timeline_file.read(measured))["verified"]["largest_relative_error"]
    largest = verified[method]
    return f"{method}, {STEPS} steps; relative L2 error of a sum at most {largest:.3g}"
