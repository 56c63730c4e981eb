"""`mpiexec -n P commsched capture SCRIPT.py:FUNCTION`: a PyTorch model as a net file."""

import argparse
from pathlib import Path

from commsched.cli.options import Flag, Option, command, json_file, output_file
from commsched.cli.ranks import begin
from commsched.errors import CommschedError
from commsched.run.job.launcher import environment_rank

EXAMPLE = """example:
  mpiexec -n 4 commsched capture train.py:build -o net.json
  commsched plan net.json --machine machine.json -o plan.json
  commsched capture train.py:build --meta -o net.json         # of a model that fits nowhere here

FUNCTION takes nothing and returns (model, loss, optimizer, batches): loss(batch) does the forward
pass and returns a scalar, batches can be read again and again, such as a list or a DataLoader.
"""
HELP = "measure a PyTorch model with all ranks computing, and write it as a net file"
STEPS = Option("--steps", "N", "steps that are measured, after 3 others", int, 10)
OPTIONS = (
    Option("script", "SCRIPT.py:FUNCTION", "script, and its function that builds everything"),
    Option("-o --output", "FILE", "net file to write", json_file, required=True),
    Option("--name", "NAME", "name of the net; default: that of the script"),
    STEPS,
    Option("--batch", "N", "samples per rank; default: the first size of the first batch", int),
    Option(
        "--record",
        "FILE.npz",
        "write samples of rank 0's gradients, for plan --max-error E --gradients FILE.npz",
        output_file,
    ),
    Flag("--find-unused-parameters", "leave out parameters that never get a gradient"),
    Flag("--chain", "chain the layers; do not ask torch.export for branches, which takes seconds"),
    Flag("--meta", "run nothing: count flops and bytes of a model of any size, on one process"),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def capture(args: argparse.Namespace) -> None:
    """Measure on all ranks, write and report on rank 0."""
    from commsched.kernels.threads import one_thread

    one_thread()
    begin(args)
    from commsched.terminal import plain_streams
    from commsched.torch.script import capture_file, model_file

    options = {
        "name": args.name or Path(args.script.rpartition(":")[0]).stem,
        "batch": args.batch,
        "find_unused_parameters": args.find_unused_parameters,
    }
    ran = {"record": args.record, "chain": args.chain, "steps": args.steps != STEPS.default}
    for needs in (name for name, given in ran.items() if given and args.meta):
        raise CommschedError(f"--{needs} needs steps that are run; leave out --meta")
    with plain_streams():  # the script's output is its own
        if args.meta:
            said = "" if environment_rank() else model_file(args.script, args.output, **options)
        else:
            options |= {"steps": args.steps, "graph": not args.chain, "record": args.record}
            said = capture_file(args.script, args.output, **options)
    if said:
        print(f"{said}\nwritten to {args.output}")
