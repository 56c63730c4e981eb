"""`commsched profile`: measure one of our nets and write a net file to plan with."""

import argparse
import json

from commsched.cli import size
from commsched.cli.options import DEVICE, Commands, Flag, Option, add_command, json_file

EXAMPLE = """example:
  commsched profile words --batch 64 -o words.json
  commsched plan words.json --machine machine.json -o plan.json
  mpiexec -n 4 commsched train --net words --plan plan.json
"""


OPTIONS = (
    Option("net", "NET", "mlp, cnn, words or gpt, with sizes: gpt:128:4:4"),
    Option("--batch", "N", "samples per rank, or per microbatch of a pipeline", int, 16),
    Option("--precision", None, "number format", default="fp32", choices=("fp32", "fp16")),
    DEVICE,
    Option("-o --output", "FILE", "net file to write", json_file, required=True),
    size.FORCE_SIZE,
    Flag("--json", "print the layers as JSON"),
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "measure a net that `commsched train` trains, and write it as a net file"
    add_command(commands, "profile", profile, text, OPTIONS, EXAMPLE)


def profile(args: argparse.Namespace) -> None:
    """Measure, write, report."""
    from commsched.kernels.threads import one_thread

    one_thread()
    from commsched.net import file as net_file
    from commsched.progress import working
    from commsched.run.wire.find_device import find_device
    from commsched.text_table import table
    from commsched.train.profile import profile_net
    from commsched.train.registry import NETS
    from commsched.units import nbytes, seconds

    net = NETS[args.net]
    size.check(args, args.net, size.profile(net))
    device = find_device(args.device)
    device.use("compute")
    with working(f"measuring {args.net}"):
        found = profile_net(
            net,
            args.batch,
            half=args.precision == "fp16",
            module=device.module,
            settled=lambda: device.mark().wait(),
        )
    net_file.write(args.output, found)
    if args.json:
        print(json.dumps(net_file.to_data(found), indent=1))
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
        for layer in found.layers
    ]
    header = ("layer", "parameters", "forward", "backward", "kept", "density of gradients")
    print(table(header, rows, numbers=range(1, 5)))
    print(f"written to {args.output}")
