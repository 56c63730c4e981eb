"""`commsched import FILE -o net.json`: a net from another program's file."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from commsched.cli.options import Flag, ListOption, Option, command, json_file
from commsched.errors import CommschedError

EXAMPLE = """examples:
  commsched import trace.json.gz -o net.json            # torch.profiler, of one rank
  commsched import model.onnx --batch 8 -o net.json
  commsched plan net.json --machine p3.16xlarge -o plan.json

Layers, tensors and seconds come from the file; the command says what the file lacks for a plan.
Tensors keep the file's names: for a net to train with commsched.torch, use capture.
"""
HELP = "make a net file of a torch.profiler trace, a Chakra trace or an ONNX model"
OPTIONS = (
    Option("file", None, "the file, also packed by gzip", Path),
    Option("-o --output", "FILE", "net file to write", json_file, required=True),
    Option("--format", "NAME", "format of the file; default: what its content says"),
    Option("--name", "NAME", "name of the net; default: that of the file"),
    Option("--batch", "N", "samples per rank; default: as the file says", int),
    ListOption("--size", "AXIS=N", "size of an axis that the file only names"),
    Flag("--json", "print what was found as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def import_(args: argparse.Namespace) -> None:
    """Read, write the net, and say what was found."""
    from commsched.interchange import content
    from commsched.interchange.registry import Options, import_file
    from commsched.net import file as net_file
    from commsched.net.summary import summary
    from commsched.progress import working

    options = Options(
        name=args.name or args.file.name.partition(".")[0] or "imported",
        batch=args.batch,
        sizes=_sizes(args.size),
    )
    if args.batch is not None and args.batch < 1:
        raise CommschedError(f"--batch must be at least 1, got {args.batch}")
    with working("reading"):
        found = import_file(content.read(args.file), options, args.format or "")
    net_file.write(args.output, found.net)
    if args.json:
        print(json.dumps({"net": str(args.output), **found.data, "notes": found.notes}, indent=1))
        return
    print(summary(found.net))
    for note in found.notes:
        print(f"- {note}")
    print(f"written to {args.output}")


def _sizes(words: Sequence[str]) -> dict[str, int]:
    found = [_size(text) for text in words]
    axes = [axis for axis, _ in found]
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise CommschedError(f"--size {twice} is given twice; give it once")
    return dict(found)


def _size(text: str) -> tuple[str, int]:
    axis, _, size = text.partition("=")
    if not axis or not (size.isascii() and size.isdecimal() and 0 < int(size) < 2**31):
        raise CommschedError(f"--size {text}: write AXIS=N, such as sequence=128")
    return axis, int(size)
