"""A collective and a codec of a package that pip installed are known to every command."""

import json
import subprocess
import sys
import zipfile

import pytest

from commsched.cli.main import main
from commsched.run.job.launcher import find_mpiexec

ENTRIES = """[commsched.plugins]
ring = outside.my_ring
codec = outside.my_codec
"""
ABOUT = {  # what a wheel says of itself, besides its RECORD
    "METADATA": "Metadata-Version: 2.1\nName: outside\nVersion: 1\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": ENTRIES,
    "RECORD": "",
}
PIP = ["pip", "install", "-q", "--no-deps", "--no-index"]
PLAN = ["plan", "lstm", "--machine", "localhost", "--lanes", "2", "--method", "my-ring+my-codec"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package with the plug-ins of `commsched new`; return its folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "collective", "my-ring"]) == 0
    assert main(["new", "codec", "my-codec"]) == 0
    wheel, place = tmp_path / "outside-1-py3-none-any.whl", tmp_path / "installed"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("outside/__init__.py", "")
        for name in ("my_ring.py", "my_codec.py"):
            archive.write(name, f"outside/{name}")
        for name, text in ABOUT.items():
            archive.writestr(f"outside-1.dist-info/{name}", text)
    subprocess.run([sys.executable, "-m", *PIP, "--target", place, wheel], check=True)
    monkeypatch.setenv("PYTHONPATH", str(place))
    return place / "outside"


def commsched(*words, before=()):
    words = [*before, sys.executable, "-m", "commsched", *words]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)


def test_every_command_knows_it_without_an_option(installed):
    listed = [
        json.loads(commsched("list", kind, "--json").stdout) for kind in ("collectives", "codecs")
    ]
    assert "my-ring" in listed[0]["collectives"]
    assert "my-codec" in listed[1]["codecs"]
    for name in ("my-ring", "my-codec"):
        checked = commsched("check", name, "--no-run")
        assert checked.returncode == 0, checked.stdout
    assert commsched(*PLAN, "-o", "plan.json").returncode == 0
    ranks = [find_mpiexec(), "-n", "2"]
    ran = commsched("run", "plan.json", "-o", "m.json", "--steps", "3", "--verify", before=ranks)
    assert ran.returncode == 0, ran.stderr
    assert "verified against the dense sum" in ran.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"""The codec', "1/0", "cannot be imported: SyntaxError"),
        ("import numpy", "import nothing_like_it", "cannot be imported: ModuleNotFoundError"),
        ('CODECS.add("my-codec")', 'CODECS.add("fp16")', ": two codecs are named 'fp16'"),
    ],
)
def test_one_that_is_broken_is_named_in_one_sentence(old, new, said, installed):
    file = installed / "my_codec.py"
    file.write_text(file.read_text().replace(old, new))
    done = commsched("list", "codecs")
    named = "commsched: plug-in outside.my_codec of the installed package outside"
    assert done.returncode == 2
    assert done.stderr.startswith(named + (said if said.startswith(":") else f" {said}"))
    assert done.stderr.count("\n") == 1


def test_a_file_that_takes_a_shipped_name_is_named(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from commsched.coding.registry import CODECS\n"
        "from commsched.codecs.dense import Dense\n"
        "CODECS.add('fp16')(Dense())\n"
    )
    done = commsched("list", "codecs", "--plugin", str(file))
    assert done.stderr == f"commsched: plug-in {file}: two codecs are named 'fp16'\n"
