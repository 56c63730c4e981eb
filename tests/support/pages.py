"""The fenced blocks of the documents: commands with their output, files, and what is not run.

```console            `$ command` lines, `> ` where a command goes on, and what they print;
```console varies     the same, but any number stands for any other; `...` is any text
```sh                 commands without output, which succeed
```python file=a.py   a file that later commands use
A block whose first line is `# not run here: WHY` or `# not run by the tests: WHY` is not run.
`<!-- run: COMMAND -->` prepares what a page takes for granted.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LEFT_OUT = re.compile(r"# not run (here|by the tests): \w")
BY_CI = "<!-- run by .ci/run -->"
PREPARED = re.compile(r"<!-- run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block, or a prepared command."""

    start: int  # the index of the first line of its body in the page
    body: tuple[str, ...]
    language: str
    words: tuple[str, ...] = ()  # after the language
    left_out: bool = False

    @property
    def varies(self) -> bool:
        return "varies" in self.words

    @property
    def file(self) -> str:
        """The name of the file that the block is; empty for others."""
        return next((word[5:] for word in self.words if word.startswith("file=")), "")

    def commands(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Each command of a console with what it prints, and the index where that begins."""
        found: list[tuple[str, list[str], int]] = []
        for index, line in enumerate(self.body):
            if line.startswith("$ "):
                found.append((line[2:], [], index + 1))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", [], index + 1)
            else:
                assert found, f"line {self.start + index + 1}: output before a command"
                found[-1][1].append(line)
        return [(command, tuple(printed), begun) for command, printed, begun in found]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page in order."""
    found, lines, inside = list[Block](), text.splitlines(), None
    for index, line in enumerate(lines):
        if line.startswith("```") and inside is None:
            inside = index
        elif line == "```" and inside is not None:
            language, *words = lines[inside][3:].split() or [""]
            body = tuple(lines[inside + 1 : index])
            skipped = bool(body and LEFT_OUT.match(body[0])) or lines[inside - 1] == BY_CI
            found.append(Block(inside + 1, body, language, tuple(words), skipped))
            inside = None
        elif inside is None and (prepared := PREPARED.fullmatch(line)):
            found.append(Block(index, (prepared[1],), "sh"))
    assert inside is None, f"the block of line {inside} does not end"
    return found
