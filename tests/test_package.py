"""The package as a whole: commands, exit statuses, version, and what a rank imports."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import commsched
from commsched.cli.main import main

ROOT = Path(__file__).resolve().parent.parent

# What a rank imports before it can take part in a run.
RANK = (
    "numpy",
    "mpi4py.MPI",
    "commsched.collectives",
    "commsched.schedule.rounds",
    "commsched.timeline.model",
)
LIMIT = 0.3  # s, for all of these; design law
FOREIGN = ("matplotlib", "networkx", "commsched.simulate", "commsched.planner", "commsched.plot")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_lists_every_command():
    done = run("-m", "commsched", "--help")
    assert done.returncode == 0, done.stderr
    folder = ROOT / "commsched" / "cli" / "commands"
    declared = {p.stem for p in folder.glob("*.py")} - {"__init__"}
    assert declared
    listed = set(re.findall(r"^ {2}(\w+)", done.stdout.split("options:")[0], re.MULTILINE))
    assert listed == declared


def test_help_of_one_command_exits_0(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["models", "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["models", "--nonsense"]])
def test_a_wrong_command_line_exits_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "commsched" in capsys.readouterr().err


def test_version_is_the_package_metadata_in_one_place(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"commsched {commsched.__version__}\n"
    assert "version = attr: commsched.__version__" in (ROOT / "setup.cfg").read_text()


def test_help_imports_neither_mpi_nor_drawing():
    code = (
        "import sys\nfrom commsched.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('mpi4py', 'matplotlib', 'networkx') if m in sys.modules])"
    )
    assert run("-c", code).stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "commsched", "models"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_rank_imports_what_it_needs_quickly_and_nothing_else():
    code = (
        "import importlib, sys, time\nstart = time.process_time()\n"
        f"for name in {RANK}: importlib.import_module(name)\n"
        "print(time.process_time() - start)\n"
        f"print([m for m in {FOREIGN} if m in sys.modules])"
    )
    seconds = []
    for _ in range(5):  # CPU seconds, best of several: other processes do not count
        done = run("-c", code)
        assert done.returncode == 0, done.stderr
        spent, foreign = done.stdout.splitlines()[-2:]  # before: what an MPI says
        assert foreign == "[]"
        seconds.append(float(spent))
    assert min(seconds) < LIMIT


def test_a_rank_that_trains_imports_no_planner_and_no_drawing():
    code = (
        "import sys, commsched.train.job\n"
        f"print([m for m in (*{FOREIGN}, 'sklearn') if m in sys.modules])"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_trains_lets_a_matrix_product_take_one_core():
    code = (
        "import os, sys\nfrom commsched.cli import main\nfrom commsched.cli.commands import train\n"
        "from commsched.kernels.threads import one_thread\n"
        "assert 'numpy' not in sys.modules\none_thread()\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    assert run("-c", code).stdout.splitlines()[-1:] == ["1"]


def test_a_training_limits_its_threads_before_numpy_starts_them():
    """`begin` says how many threads a rank has, which NumPy reads when it is imported."""
    program = (
        "import sys\n"
        "from commsched.cli.commands import train\n"
        "from commsched.cli.main import main\n"
        "train.begin = lambda *_, **__: sys.exit('numpy' in sys.modules)\n"
        "main(['train', '--net', 'mlp', '--plan', 'p.json'])\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_every_wrong_change_of_the_nightly_suite_has_its_line():
    source = "\n".join(path.read_text() for path in (ROOT / "commsched").rglob("*.py"))
    mutants = tomllib.loads((ROOT / "tests/nightly/mutants.toml").read_text())["mutant"]
    assert [
        mutant["name"]
        for mutant in mutants
        if not any(source.count(code["snippet"]) == 1 for code in mutant["code"])
    ] == []


def test_a_class_name_stands_for_one_thing():
    """Only what `commsched` exports has the name of the class that it shows to users."""
    classes = [
        node.name
        for path in (ROOT / "commsched").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    twice = {name for name, count in Counter(classes).items() if count > 1}
    assert twice == {"Machine", "Net", "Plan", "Prediction"} & set(commsched.__all__)


def test_a_file_is_named_by_what_it_is_about():
    vague = {"given", "kept", "held", "asked", "wishes", "doubt", "room", "crowd", "makeup"}
    vague |= {"alone", "locally", "together", "ways", "again", "alongside", "placed", "unnamed"}
    assert vague.isdisjoint(path.stem for path in (ROOT / "commsched").rglob("*.py"))


def test_no_sentence_has_a_phrase_that_is_read_twice():
    files = [*(ROOT / "commsched").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    phrase = re.compile(r"\b(of\s+which|so\s+many|in\s+truth)\b", re.IGNORECASE)
    found = {str(path): phrase.findall(path.read_text()) for path in files}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}
