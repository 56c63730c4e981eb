"""What `commsched run` refuses before it starts: damaged plans and impossible options."""

import json
import re
import sys

from commsched import records
from tests.support.jobs import Single
from tests.test_faults import SECONDS, written
from tests.test_unlike_ranks import nothing_written


def damaged(content: str, how: str) -> bytes:
    data = json.loads(content)
    if how == "digit":
        data["launches"][0]["pieces"][0][2] += 1
    elif how == "rehashed":
        data["launches"][0]["pieces"][0][2] += 1
        data["hash"] = records.digest({k: v for k, v in data.items() if k != "hash"})
    elif how == "duplicate":
        return content.replace('"mean"', '"seed": 1, "mean"', 1).encode()
    elif how == "truncated":
        return content[: len(content) // 2].encode()
    elif how == "text":
        return b"not JSON at all"
    elif how == "binary":
        return bytes(range(256))
    elif how == "empty":
        return b""
    elif how == "timeline":
        data = {"traceEvents": []}
    return json.dumps(data).encode()


DAMAGES = {
    "digit": "the plan was changed after it was made: its hash is ",
    "rehashed": r"elements \[0, 501\) of tensor|element 500 is exchanged more than once",
    "duplicate": "key 'seed' stands twice",
    "truncated": "not valid JSON",
    "text": "not valid JSON",
    "binary": "not a text file",
    "empty": "not valid JSON",
    "timeline": "unknown field `traceEvents`|missing required field",
}
WRONG_OPTIONS = (
    (["--steps", "0"], "--steps must be at least 1, got 0"),
    (["--steps", "-3"], "--steps must be at least 1, got -3"),
    (["--timeout", "0"], "--timeout must be finite and more than 0 s; got 0"),
    (["--timeout", "nan"], "--timeout is a time, such as 28 us; got 'nan'"),
    (["-o", "{folder}/none/m.json"], "{folder}/none/m.json: cannot be written there; give a"),
    (["-o", "{folder}"], "{folder}: cannot be written there; give a"),
)


def refusals(lines: list[list[str]]) -> list[str]:
    """What one process says to each of some command lines; it refuses all of them."""
    code = f"from commsched.cli.main import main\nfor line in {lines}:\n    assert main(line) == 2"
    with Single(sys.executable, "-c", code) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    found = ended.output.splitlines()
    assert len(found) == len(lines), ended.output
    return found


def test_a_damaged_plan_is_refused(tmp_path):
    paths = {how: written(tmp_path / f"{how}.json", lanes=1) for how in DAMAGES}
    for how, path in paths.items():
        path.write_bytes(damaged(path.read_text(), how))
    output = ["-o", str(tmp_path / "m.json")]
    lines = refusals([["run", str(path), *output] for path in paths.values()])
    for line, (how, path) in zip(lines, paths.items(), strict=True):
        assert line.startswith(f"commsched: {path}: ")
        assert re.search(DAMAGES[how], line), line
    assert not (tmp_path / "m.json").exists()


def test_an_impossible_option_is_refused(tmp_path):
    path = written(tmp_path / "a.json", lanes=1)
    line = ["run", str(path), "-o", str(tmp_path / "m.json")]
    given = [[option.format(folder=tmp_path) for option in options] for options, _ in WRONG_OPTIONS]
    found = refusals([[*line, *options] for options in given])
    for text, (_, message) in zip(found, WRONG_OPTIONS, strict=True):
        assert text.startswith("commsched: " + message.format(folder=tmp_path))
    assert nothing_written(tmp_path)
