"""The help of all commands in groups, of one benchmark alone, and completion in shells."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
from pkgutil import iter_modules

import pytest

from commsched.cli import commands
from commsched.cli.commands.bench import BENCHES
from commsched.cli.main import GROUPS, main
from tests.support.pages import ROOT

COMMANDS = sorted(module.name for module in iter_modules(commands.__path__))


def help_of(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_every_command_is_in_one_group(capsys):
    assert sorted(name for names in GROUPS.values() for name in names) == COMMANDS
    shown = help_of(capsys)
    places = [shown.index(f"\n{title}:\n") for title in (*GROUPS, "options")]
    assert places == sorted(places)
    assert "More:" not in shown
    for title, names in GROUPS.items():
        part = shown[shown.index(f"\n{title}:\n") :].split("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines()[2:] if line[2] != " "] == [*names]


def test_the_manual_page_is_what_the_parser_says(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "extension")
    made = importlib.import_module("man_page")
    assert made.PAGE.read_text() == made.man_page(), "run: python docs/extension/man_page.py"


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_has_help_of_its_own(name, capsys):
    assert f"    {name}" in help_of(capsys, "bench")
    own = help_of(capsys, "bench", name)
    assert f"example:\n  {BENCHES[name].example}\n" in own
    assert ("--codec" in own) == (name == "codecs")
    assert ("--timeout" in own) == (
        name in ("all-reduce", "buffers", "overlap", "runtime", "sparse", "torch-overhead")
    )


def test_an_option_before_the_name_of_a_benchmark_counts(capsys):
    words = ["--numel", "5000", "--repeats", "2", "--codec", "fp16"]
    assert main(["bench", "--json", "codecs", *words]) == 0
    assert capsys.readouterr().out.startswith("[\n {")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plna"], "no command 'plna'; nearest: 'plan'; see 'commsched --help'"),
        (["bench", "codec"], "nearest: 'codecs'; see 'commsched bench --help'"),
        (["machine", "old"], "known: new, fit, stalls, devices; see 'commsched machine --help'"),
        (["profile", "mlp", "--precision", "fp8"], "no --precision 'fp8'; known: fp32, fp16"),
    ],
)
def test_what_is_not_known_has_the_nearest(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


shtab = pytest.mark.skipif(
    importlib.util.find_spec("shtab") is None, reason="pip install '.[completion]'"
)


@shtab
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--break-even", "all-reduce"))
    path = tmp_path / "commsched"
    path.write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", path], check=True)
    if shell == "bash":
        ask = f"source {path}; COMP_WORDS=(commsched pl); COMP_CWORD=1; _shtab_commsched x pl y;"
        ask += ' echo "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["plan", "plot"]


def test_without_shtab_completion_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "completion needs shtab; pip install '.[completion]'" in capsys.readouterr().err
