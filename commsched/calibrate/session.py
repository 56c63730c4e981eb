"""`commsched calibrate`: all ranks measure, rank 0 writes the machine file."""

import json
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from commsched.calibrate.main import Progress, calibrate
from commsched.errors import CommschedError
from commsched.files import check_writable
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.machine.trust import LIMIT, MEMORY_CHANGE, errors_of, held_out_line, poor, steady
from commsched.progress import progress_visible
from commsched.run.job import agree
from commsched.run.job.watchdog import Watchdog, end_together, watchdog
from commsched.run.session import check_timeout, errors_end_the_job
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import choose_placement
from commsched.terminal import screen


def calibrate_file(
    output: Path, seconds: float, timeout: float, device: str = "cpu", as_json: bool = False
) -> None:
    """Measure the machine with all ranks of the job; rank 0 writes the machine file."""
    comm = MPI.COMM_WORLD
    end_together("calibrate", timeout)
    # A single stage may take all of the time.
    limit, options = timeout + seconds, "--timeout and --seconds"
    with errors_end_the_job(comm), watchdog(comm, "calibrate", limit, options) as dog:
        agree.on_all_ranks(lambda: _check(output, seconds, timeout, device), comm)
        place = choose_placement(device, comm)
        told: list[str] = []
        machine = calibrate(comm, seconds, timeout, _progress(comm, dog), place, told.append)
        dog.stage("writing the machine file")
        if comm.rank == 0:
            machine_file.write(output, machine)
            told += warnings_of(machine)
            report = json.dumps(_data(machine, output, told), indent=1)
            print(report if as_json else "\n".join(_report(machine, output, told)))


def _check(output: Path, seconds: float, timeout: float, device: str) -> None:
    if not seconds > 0:
        raise CommschedError(f"--seconds must be more than 0, got {seconds}")
    check_timeout(timeout)
    check_device(device)
    check_writable(output)


def _report(machine: Machine, output: Path, warnings: Sequence[str]) -> list[str]:
    """Say where the machine was measured, and how far to trust it."""
    errors = errors_of(machine)
    text = [f"{machine.source}; written to {output}", *([held_out_line(errors)] if errors else [])]
    return [*text, *(f"warning: {sentence}" for sentence in warnings)]


def warnings_of(machine: Machine) -> list[str]:
    """Return sentences on why predictions on a machine may be far off."""
    alone = "1 rank exchanges nothing; use 'mpiexec -n P' to measure links"
    again = (
        f"this calibration is poor: `commsched validate` asks for a median error of at most"
        f" {LIMIT:.0%}; calibrate again with nothing else running, or with more --seconds"
    )
    change = machine.measured.get(MEMORY_CHANGE, 1.0)
    moved = (
        f"memory was {change:.2g} times as fast at the end of this calibration as at its begin:"
        " other guests of this host or other programs use it, too, and exchanges inside a node are"
        " predicted as well as its speed stays; calibrate again"
    )
    return [
        *[alone] * (machine.size == 1),
        *[again] * poor(errors_of(machine)),
        *[moved] * (not steady(change)),
    ]


def _data(machine: Machine, output: Path, warnings: Sequence[str]) -> dict[str, object]:
    """Return the report as plain data."""
    errors = errors_of(machine)
    return {
        "machine": str(output),
        "ranks": machine.size,
        "source": machine.source,
        "held_out_errors": list(errors),
        "warnings": list(warnings),
    }


def _progress(comm: MPI.Intracomm, dog: Watchdog) -> Progress:
    """Report each stage to the watchdog and on a progress bar."""
    bar = None
    if comm.rank == 0 and progress_visible():
        from tqdm import tqdm

        bar = tqdm(total=100, unit="%", desc="calibrate", file=screen())

    def progress(what: str, share: float) -> None:
        dog.stage(what)
        if bar is not None:
            bar.set_postfix_str(what)
            bar.update(round(100 * share) - bar.n)
            if share == 1.0:
                bar.close()  # ends the line

    return progress
