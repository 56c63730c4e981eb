"""`mpiexec -n P commsched profile`: measure one of our nets under the load of a run."""

import argparse
import json

from commsched.cli import size
from commsched.cli.options import (
    DEVICE,
    TIMEOUT,
    TRAINABLE,
    Flag,
    Option,
    command,
    json_file,
)
from commsched.cli.ranks import begin
from commsched.quantities import SECONDS

EXAMPLE = """example:
  mpiexec -n 4 commsched profile words --batch 16 -o words.json    # as many ranks as will train
  commsched plan words.json --machine machine.json -o plan.json
  mpiexec -n 4 commsched train --net words --plan plan.json
"""
HELP = "measure a net of `commsched train` with all ranks computing, and write it as a net file"
OPTIONS = (
    Option("net", "NET", TRAINABLE),
    Option("--batch", "N", "samples per rank, or per microbatch of a pipeline", int, 16),
    Option("--precision", None, "number format", default="fp32", choices=("fp32", "fp16")),
    Option("--optimizer", "NAME", "sgd, momentum or adam", default="momentum"),
    Option("--seconds", "TIME", "least duration of the measured steps", SECONDS, 2.0),
    DEVICE,
    TIMEOUT,
    Option("-o --output", "FILE", "net file to write", json_file, required=True),
    size.FORCE_SIZE,
    Flag("--json", "print the layers as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def profile(args: argparse.Namespace) -> None:
    """Measure on all ranks, write and report on rank 0."""
    from commsched.kernels.threads import one_thread, threads

    one_thread()
    begin(args)
    from commsched.net import file as net_file
    from commsched.net.compute import measured_on
    from commsched.text_table import table
    from commsched.train.profile_job import profile_job
    from commsched.units import nbytes, seconds

    net = profile_job(
        args.net,
        batch=args.batch,
        optimizer=args.optimizer,
        half=args.precision == "fp16",
        device=args.device,
        timeout=args.timeout,
        threads=threads(),
        seconds=args.seconds,
        check=lambda net: size.check(args, args.net, size.profile(net)),
    )
    if net is None:
        return
    net_file.write(args.output, net)
    if args.json:
        print(json.dumps(net_file.to_data(net), indent=1))
        return
    rows = [
        (
            layer.name,
            str(sum(t.numel for t in layer.tensors)),
            seconds(layer.forward or 0.0),
            seconds(layer.backward or 0.0),
            nbytes(layer.activation),
            ", ".join(f"{t.sparsity.density:.3g}" for t in layer.tensors),
        )
        for layer in net.layers
    ]
    header = ("layer", "parameters", "forward", "backward", "kept", "density of gradients")
    print(table(header, rows, numbers=range(1, 5)))
    assert net.measured is not None
    update, between = seconds(net.optimizer or 0.0), seconds(net.data)
    print(f"update {update}, between two steps {between}; {measured_on(net.measured)}")
    print(f"written to {args.output}")
