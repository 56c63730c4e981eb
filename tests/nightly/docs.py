"""Run the commands of the documents, and compare what they print with what the pages show.

`python -m tests.nightly.docs [PAGE ...] [--update]`: each page in a fresh folder, in its order.
With --update a page shows what its commands print now; look at the difference before you keep it.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

from tests.support.pages import PAGES, ROOT, Block, blocks

TIMEOUT = 600.0  # s
NUMBER = re.compile(
    r"\b(none|[0-9a-f]{12})\b|[-+]?\b\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?(us|ms|s|B|kB|MB|GB)\b)?"
)
RULE = re.compile(r"-{3,}")


def differences(page: Path, update: bool = False) -> list[str]:
    """Run a page; return what differs, or write it into the page."""
    text = page.read_text()
    lines, found, moved = text.splitlines(), list[str](), 0
    with tempfile.TemporaryDirectory(prefix="page-") as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        for linked in ("examples", "models", "traces/micro-benchmarks"):
            (folder / linked).symlink_to(ROOT / linked)
        for block in blocks(text):
            if block.left_out:
                continue
            if block.file:
                (folder / block.file).write_text("\n".join(block.body) + "\n")
            elif block.language == "sh":
                status, printed = _run("set -e\n" + "\n".join(block.body), folder)
                if status:
                    found.append(f"{page.name}:{block.start}: status {status}\n{printed}")
            elif block.language == "console":
                for command, shown, begun in block.commands():
                    printed = _run(command, folder)[1]
                    if _alike("\n".join(shown), printed, block):
                        continue
                    found.append(f"{page.name}:{block.start + begun}: $ {command}\n{printed}")
                    at = block.start + begun + moved
                    lines[at : at + len(shown)] = printed.splitlines()
                    moved += len(printed.splitlines()) - len(shown)
    if update and "\n".join(lines) + "\n" != text:
        page.write_text("\n".join(lines) + "\n")
    return found


def _run(command: str, folder: Path) -> tuple[int, str]:
    """Run a command as a terminal of 100 columns would, and end all that it leaves."""
    here = Path(sys.executable).parent
    more = {"COLUMNS": "100", "NO_COLOR": "1", "COMMSCHED_LAST": str(folder / "last")}
    paths = {"PATH": f"{here}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | more | paths,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed = process.communicate(timeout=TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed = f"{process.communicate()[0]}\nended after {TIMEOUT:g} s"
    return process.returncode, "\n".join(line.rstrip() for line in printed.splitlines())


def _alike(shown: str, printed: str, block: Block) -> bool:
    if block.varies:
        shown, printed = (RULE.sub("---", NUMBER.sub("0", text)) for text in (shown, printed))
    shown = shown.replace("\n...", "...")  # lines, or nothing
    return OutputChecker().check_output(
        f"{shown}\n", f"{printed}\n", ELLIPSIS | NORMALIZE_WHITESPACE * block.varies
    )


def main() -> int:
    """Run the pages that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true", help="write what differs into the pages")
    args = parser.parse_args()
    bad = False
    for page in args.pages or PAGES:
        found = differences(page.resolve(), args.update)
        print(f"{page}: {len(found)} different", *found, sep="\n", flush=True)
        bad |= bool(found) and not args.update
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
