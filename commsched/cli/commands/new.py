"""`commsched new`: a collective or codec of your own to begin with, and its test."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from commsched.cli.options import Option, command, output_file
from commsched.errors import CommschedError

EXAMPLE = """example:
  commsched new collective my-ring
  commsched check my_ring.py --ranks 8,1024
  commsched price 25000000 --machine summit --plugin my_ring.py --method my-ring+dense,ring+dense
  commsched new codec int16 -o plug-ins/int16.py
  python -m pytest plug-ins/test_int16.py
"""
HELP = "begin a collective or codec of your own: a small one that works, and its test"
OPTIONS = (
    Option("kind", "KIND", "collective or codec", choices=("collective", "codec")),
    Option("name", "NAME", "its name in plans: small letters, digits and hyphens"),
    Option("-o --output", "FILE.py", "file to write; default: NAME.py", output_file),
)


@command(HELP, OPTIONS, EXAMPLE)
def new(args: argparse.Namespace) -> None:
    """Write the plug-in and its test; refuse to overwrite existing files."""
    from commsched import files
    from commsched.lab.plug_in_laws.skeleton import identifier, texts

    made = texts(args.kind, args.name)
    path: Path = args.output or Path(f"{identifier(args.name)}.py")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise CommschedError(f"{path}: Python imports no such file; name it like torus_2d.py")
    test = path.with_name(f"test_{path.name}")
    for each in (path, test):
        if each.exists():
            raise CommschedError(f"{each} is there already; give another file with -o")
    there = find_spec(path.stem)
    if there is not None and there.origin:  # a folder of modules hides nothing
        raise CommschedError(
            f"{path} would hide Python's module {path.stem!r} ({there.origin}); choose another name"
        )
    code, test_code = made
    files.write_bytes(path, code.encode())
    module = identifier(args.name)
    test_code = test_code.replace(f"import {module} ", f"import {path.stem} ")
    files.write_bytes(test, test_code.encode())
    print(f"written to {path}, a {args.kind} that works, and {test}")
    print(f"next: commsched check {path}")
