"""`commsched doctor`: check whether this environment can run plans, and advise what to fix."""

import argparse
import json
from typing import TYPE_CHECKING

from commsched.cli.options import Flag, command

if TYPE_CHECKING:
    from commsched.run.doctor import Diagnosis

EXAMPLE = """example:
  commsched doctor
  mpiexec -n 2 commsched doctor
"""
HELP = "check whether this environment can run plans; also under mpiexec"
OPTIONS = (Flag("--json", "print the findings as JSON"),)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def doctor(args: argparse.Namespace) -> int:
    """Print the findings on the first rank; return 1 if one of them prevents a run."""
    from dataclasses import asdict

    from commsched.run.doctor import FindingStatus, examine
    from commsched.run.job.launcher import environment_rank

    findings = [*examine(), _testbed()]
    if environment_rank() in (None, 0):
        if args.json:
            print(json.dumps([asdict(finding) for finding in findings], indent=1))
        else:
            print("\n".join(map(str, findings)))
    return int(any(finding.status is FindingStatus.FAIL for finding in findings))


def _testbed() -> "Diagnosis":
    """Check what the hosts of a testbed need."""
    from commsched.lab.testbed.system import lacking
    from commsched.run.doctor import OK, WARN

    lacks = lacking()
    there = OK("testbed", "root, iproute2 and util-linux are there")
    return WARN("testbed", lacks) if lacks else there
