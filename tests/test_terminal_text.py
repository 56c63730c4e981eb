"""What files hold reaches a terminal escaped, and errors quote no long values."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from commsched import shipped
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.progress import tell
from commsched.terminal import plain_streams, printable_streams
from commsched.text_table import table
from commsched.timeline import file as timeline_file

RED = "\x1b[31mred\x07\x9b1m\u202e\x7f"  # ESC, bell, CSI of 8 bits, right-to-left override, delete
LONG = "x" * 1000


def machine(folder: Path, **changes: object) -> str:
    data = json.loads(shipped.path_of("machines", "localhost").read_text())
    path = folder / "machine.json"
    path.write_text(json.dumps(data | changes))
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints on both streams."""
    main(words)
    said = capsys.readouterr()
    return said.out + said.err


def check(text: str) -> None:
    assert "red" in text
    assert [c for c in text if not (c.isprintable() or c == "\n")] == []


def test_names_sources_keys_and_values_are_escaped(tmp_path, capsys):
    check(shown(capsys, "show", machine(tmp_path, name=RED, source=RED)))
    check(shown(capsys, "show", machine(tmp_path, **{RED: 1})))
    check(shown(capsys, "show", machine(tmp_path, library=RED)))
    check(shown(capsys, "show", machine(tmp_path, format=RED)))
    check(shown(capsys, "show", f"{tmp_path}/{RED}.json"))
    check(shown(capsys, "plan", "vgg16", "--machine", RED, "-o", f"{tmp_path}/plan.json"))
    told = shown(capsys, "show", "--json", machine(tmp_path, source=RED))
    assert json.loads(told)["source"] == RED


def test_warnings_of_a_timeline_are_escaped(tmp_path, capsys):
    plan, path = tmp_path / "plan.json", tmp_path / "timeline.json"
    net = ["models", "--transformer", "layers=1,hidden=8,heads=1", "-o", str(tmp_path / "net.json")]
    assert main(net) == 0
    words = ["plan", net[-1], "--machine", "localhost", "--lanes", "2", "-o", str(plan)]
    assert main([*words, "--time-limit", "0"]) == 0
    assert main(["simulate", str(plan), "-o", str(path), "--steps", "2"]) == 0
    data = json.loads(path.read_text())
    data["otherData"]["kind"] = "measured"
    data["otherData"]["meta"] = {"warnings": [RED]}
    path.write_text(json.dumps(data))
    assert timeline_file.read(path).warnings == (RED,)
    capsys.readouterr()
    check(shown(capsys, "show", str(path)))


def test_a_value_cannot_add_lines_to_a_table_or_an_error():
    assert len(table(["name"], [["a\nb"]]).split("\n")) == 2
    assert "\\n" in table(["name"], [["a\nb"]])


def test_errors_shorten_values(tmp_path, capsys):
    for changes in ({"library": LONG}, {LONG: 1}, {"format": LONG}, {"nodes": LONG}):
        said = shown(capsys, "show", machine(tmp_path, **changes))
        assert "x" * 20 in said or "nodes" in said
        assert "x" * 81 not in said
    assert len(str(CommschedError(f"no {LONG!r} in the plan's {'y' * 3000}, a rank's"))) < 700
    said = (
        "the plan's budget of the net's gradients is more than what the machine's ranks allow, too"
    )
    assert str(CommschedError(said)) == said


def test_streams_write_what_their_encoding_lacks(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    with printable_streams():
        print("\N{MICRO SIGN}s\x1b", "\ud800")
        with plain_streams():
            print("\x1b[0m")
    narrow.seek(0)
    assert narrow.read() == "\\xb5s\\u001b \\ud800\n\x1b[0m\n"


def test_progress_moves_the_cursor_and_its_words_do_not():
    screen = io.StringIO()
    with contextlib.redirect_stderr(screen), printable_streams():
        tell(f"\r{RED}")
    check(screen.getvalue())
