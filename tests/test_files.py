"""What is read, and what writing does to links, devices and pipes."""

import os
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from commsched import files
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file as machine_file

NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)  # the numbers that Linux gives them
MACHINE = "localhost"


def node(path: Path, number: int) -> Path:
    """Make a device of its own for a test."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.read_bytes() if number == NULL else path.open("rb").close()
    except PermissionError:
        pytest.skip("needs root, and a folder on which devices work")
    return path


def write(output: Path) -> int:
    return main(["models", "--transformer", "layers=1,hidden=4,heads=2", "-o", str(output)])


def commsched(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as a process, which has its own stdin."""
    command = [sys.executable, "-m", "commsched", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", ["show", "simulate", "plot -o a.png", "compare b.json"])
def test_devices_pipes_and_sockets_are_not_read(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")
    name, *options = command.split()
    for path, kind in (
        ("/dev/zero", "a device"),
        ("pipe.json", "a pipe"),
        ("/proc", "a directory"),
    ):
        assert main([name, path, *options]) == 2
        assert f"{path}: cannot be read: Is {kind}" in capsys.readouterr().err


def test_a_file_that_grows_is_read_up_to_the_limit(tmp_path):
    # The size of a file in /proc is said to be 0.
    with pytest.raises(CommschedError, match="larger than 10 bytes, which is the most allowed"):
        files.read_bytes("/proc/self/status", most=10)
    assert b"Name:" in files.read_bytes("/proc/self/status")


def test_a_gigabyte_of_json_is_refused_in_little_memory(tmp_path, capsys):
    path = tmp_path / "large.json"
    path.write_bytes(b"[")
    os.truncate(path, 2**30)
    tracemalloc.start()
    for command in ("show", "simulate", "price 1 --machine"):
        assert main([*command.split(), str(path)]) == 2
        assert f"{path}: larger than {files.MAX_TEXT} bytes" in capsys.readouterr().err
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * files.MAX_TEXT  # a buffer that grows, and is copied as it does


def test_stdin_is_a_dash(tmp_path):
    text = files.read_text(Path(__file__).parents[1] / f"models/machines/{MACHINE}.json")
    done = commsched("show", "-", text=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{MACHINE}: ")
    done = commsched("price", "1000", "--machine", "-", "--method", "ring+dense", text=text)
    assert done.returncode == 0
    assert "ring+dense" in done.stdout


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "net.json", tmp_path / "there" / "real.json"
    link.symlink_to("there/real.json")
    for _ in range(2):  # the target is new, then it exists
        assert write(link) == 0
        assert link.is_symlink()
        assert main(["show", str(target)]) == 0
        assert os.listdir(target.parent) == [target.name]


def test_the_null_device_is_written_to_and_stays(tmp_path):
    null = node(tmp_path / "null", NULL)
    link = tmp_path / "link"
    link.symlink_to(null)
    for path in (null, link):
        assert write(path) == 0
        assert stat.S_ISCHR(null.stat().st_mode)
        assert null.stat().st_rdev == NULL
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "null"]


def test_other_devices_are_refused_before_any_work_and_stay(tmp_path, capsys):
    zero = node(tmp_path / "zero", ZERO)
    assert write(zero) == 2
    assert (
        "give a file in a writable folder: Is a device; only regular files are"
        in capsys.readouterr().err
    )
    with pytest.raises(CommschedError, match="Is a device"):
        files.write_bytes(zero, b"1")
    assert zero.stat().st_rdev == ZERO


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CommschedError, match="nobody reads the pipe"):
        files.write_bytes(pipe, b"1")
    machine = machine_file.load(MACHINE)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    descriptor = os.open(pipe, os.O_WRONLY)  # waits for the reader
    machine_file.write(pipe, machine)
    os.close(descriptor)
    found = tmp_path / "machine.json"
    found.write_bytes(reader.communicate(timeout=60)[0])
    assert machine_file.read(found) == machine
    assert stat.S_ISFIFO(pipe.stat().st_mode)
