"""`commsched doctor`: is this environment fit for a run, and if not, what to do."""

import argparse
import json

EXAMPLE = """example:
  commsched doctor
  mpiexec -n 2 commsched doctor
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "doctor",
        help="is this environment fit for a run? also with mpiexec",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--json", action="store_true", help="findings as JSON")
    p.set_defaults(run=doctor)


def doctor(args: argparse.Namespace) -> int:
    """Print the findings from the first rank; 1 if one of them keeps a run from working."""
    from dataclasses import asdict

    from commsched.run.doctor import FindingStatus, examine
    from commsched.run.job.launcher import environment_rank

    findings = examine()
    if environment_rank() in (None, 0):
        if args.json:
            print(json.dumps([asdict(finding) for finding in findings], indent=1))
        else:
            print("\n".join(map(str, findings)))
    return int(any(finding.status is FindingStatus.FAIL for finding in findings))
