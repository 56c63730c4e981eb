"""Logs of trainings: what is written comes back, what is no log is refused, curves are drawn."""

import re
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.plot.training import _smooth, draw
from commsched.training_log import HeldOutRow, LogHeader, LogRow, TrainingLog, check_no_other, read

HEADER = LogHeader(net="mlp:4:1", strategy="sync", plan="0" * 64, ranks=2, made={"--seed": 0})


def row(step: int, loss: float | None = 1.5) -> LogRow:
    return LogRow(step=step, loss=loss, accuracy=0.25, seconds=0.01, sent_bytes=10)


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "log.jsonl"
    log = TrainingLog(path, HEADER)
    for step in range(4):
        log.write(row(step, None if step == 2 else 2.0 - step / 8))
    log.write(HeldOutRow(step=3, loss=1.75, accuracy=0.5))
    log.close()
    return path


def test_what_is_written_comes_back(path):
    held = HeldOutRow(step=3, loss=1.75, accuracy=0.5)
    want = [HEADER, row(0, 2.0), row(1, 1.875), row(2, None), row(3, 1.625), held]
    assert read(path) == want


def test_a_line_that_a_crash_has_torn_is_left_out(path):
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"step","st')
    assert len(read(path)) == 6
    path.write_bytes(whole[:-1])
    assert len(read(path)) == 5


def test_a_resumed_training_goes_on_before_its_step(path):
    log = TrainingLog(path, HEADER, resume_at=2)
    log.write(row(2))
    log.close()
    assert [line.step for line in read(path)[1:] if isinstance(line, LogRow)] == [0, 1, 2]
    other = LogHeader(net="cnn:4", strategy="sync", plan="0" * 64, ranks=2, made={"--seed": 0})
    with pytest.raises(CommschedError, match="the log of another training; give another file"):
        TrainingLog(path, other, resume_at=2)


def test_a_training_that_is_not_resumed_begins_anew(path):
    TrainingLog(path, HEADER).close()
    assert read(path) == [HEADER]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no log of a training: it is empty"),
        ("{}\n", "line 1: "),
        ("[\n", "line 1: not valid JSON"),
        ('{"type":"step","step":0,"loss":1,"accuracy":2,"seconds":1,"sent_bytes":1}\n', "line 1"),
        ('{"type":"held out","step":0,"loss":1,"accuracy":1}\n', "one header, in its first line"),
    ],
)
def test_what_is_no_log_is_refused(text, message, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(CommschedError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_log_replaces_logs_and_empty_files_only(path, tmp_path):
    other = tmp_path / "other.txt"
    check_no_other(other)
    other.touch()
    check_no_other(other)
    other.write_bytes(path.read_bytes())
    check_no_other(other)
    other.write_text("{}\n")
    with pytest.raises(CommschedError, match="is no log, and --log would replace it"):
        check_no_other(other)


def test_several_trainings_are_laid_over_each_other(path, tmp_path, capsys):
    slow, made = path.with_name("slow.jsonl"), tmp_path / "both.svg"
    slow.write_bytes(path.read_bytes().replace(b'"seconds":0.01', b'"seconds":0.03'))
    assert main(["plot", str(path), str(slow), "--x", "seconds", "-o", str(made)]) == 0
    text = made.read_text()
    for word in ("log: mlp:4:1, sync, 2 ranks", "slow: held out"):
        assert word in text
    before = text.split("seconds of steps")[0]  # the first axis, and its ticks
    ticks = [float(tick) for tick in re.findall(r">(0\.\d+)<", before)]
    assert 0.09 < max(ticks) < 0.15  # four steps of 0.03 s
    with pytest.raises(CommschedError, match="no axis 'ranks' of trainings; known: step, seconds"):
        draw([path], made, "ranks")
    capsys.readouterr()
    assert main(["plot", str(path.with_name("no.json")), "a", "b", "-o", str(made)]) == 2
    assert "one or two timelines are drawn, got 3" in capsys.readouterr().err


def test_curves_are_drawn_the_same_twice(path, tmp_path):
    for name in ("a.svg", "b.svg", "c.png"):
        draw([path, path], tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for word in ("mlp:4:1, sync, 2 ranks", "held out", "loss, nats per guess", "right guesses"):
        assert word in text
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(CommschedError, match=r"cannot draw '.gif' files; use .png, .svg or .pdf"):
        draw([path], tmp_path / "d.gif")


def test_a_curve_has_a_gap_where_no_loss_is_finite():
    values = np.array([1.0, 3.0, np.nan, 5.0])
    np.testing.assert_array_equal(_smooth(values), values)


def test_a_legend_of_many_trainings_takes_nothing_from_their_curves(path, tmp_path):
    made = tmp_path / "a.svg"

    def tall(number: int) -> float:
        draw([path] * number, made)
        return max(map(float, re.findall(r'<rect .*height="([\d.]+)"', made.read_text())))

    assert tall(20) > 0.9 * tall(1) > 100


def test_the_legend_names_what_a_log_has(path, tmp_path):
    made, lines = tmp_path / "a.svg", path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    draw([path], made)
    assert "held out" not in made.read_text()
    path.write_text(lines[0] + lines[-1])
    draw([path], made)
    assert "held out" in made.read_text()
    assert "sync, 2 ranks" not in made.read_text()
