"""What bash, zsh and fish really offer behind a TAB, with the script of `commsched completion`."""

import importlib.util
import os
import shlex
import shutil
import subprocess

import pytest

from commsched.cli.main import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("shtab") is None, reason="pip install '.[completion]'"
)
BASH = """source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_commsched commsched 2>/dev/null  # compopt, outside a real TAB
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# A terminal with zsh, in which a line, a TAB and a newline are typed; `commsched` prints its words.
ZSH = """zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "stty cols 150 rows 200; LISTMAX=9999; PS1=; fpath=({folder} \\$fpath)
autoload -U compinit; compinit -u -D; zstyle ':completion:*' verbose no
commsched() {{ print -r -- took \\$* }}; echo rea''dy"
zpty -r z out '*ready*'
zpty -n -w z {line}$'\\t\\n'
zpty -w z "echo o''ver"
zpty -r z out '*over*'
print -r -- $out
"""
FISH = "source {script}; complete -C {line}"


def offered(shell, script, line):
    """Return the words that a shell shows after a line and a TAB."""
    words = line.split(" ")
    text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(
        script=script,
        folder=script.parent,
        line=shlex.quote(line),
        words=shlex.join(words[:-1]) + f" '{words[-1]}'",
        last=len(words) - 1,
    )
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", text],
        cwd=script.parent.parent,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TERM": "dumb"},
    )
    shown = done.stdout.splitlines()
    names = [text.partition("\t")[0] for text in shown] if shell == "fish" else shown
    return {word.rstrip("/") for text in names for word in text.split()} - set(words[:-1])


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def shell(request, tmp_path_factory):
    """A shell, and its script in a folder of $fpath beside which there is a file `mine.json`."""
    if shutil.which(request.param) is None:
        pytest.skip(f"apt-get install {request.param}")
    script = tmp_path_factory.mktemp("shell") / "functions" / "_commsched"
    script.parent.mkdir()
    (script.parent.parent / "mine.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch, script.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", request.param]) == 0
    return request.param, script


@pytest.mark.parametrize(
    ("line", "there", "not_there"),
    [
        ("commsched pl", ["plan", "plot"], ["price", "mine.json"]),
        ("commsched machine ", ["new", "fit", "stalls"], ["mine.json"]),
        ("commsched plan --pla", ["--planner"], ["--machine"]),
        ("commsched plan ", ["bert-base", "resnet50", "mine.json"], ["summit", "plan"]),
        ("commsched plan resnet", ["resnet50", "resnet101"], ["bert-base", "mine.json"]),
        ("commsched train --net ", ["gpt:64:2:4"], ["bert-base"]),
        ("commsched plan vgg16 --machine ", ["summit", "mine.json"], ["vgg16"]),
        ("commsched plan vgg16 --machine p3", ["p3.16xlarge", "p3dn.24xlarge"], ["summit"]),
        ("commsched plan vgg16 --method ring+", ["ring+dense"], ["ring+qsgd:4", "zen"]),
        ("commsched plan vgg16 --planner ", ["best", "ddp-25mb"], ["mine.json"]),
        ("commsched plan vgg16 --strategy ", ["auto", "zero1"], ["best"]),
        ("commsched plan vgg16 --allow fp16,one", ["fp16,onebit"], ["onebit", "fp16"]),
        ("commsched machine new --net ", [], ["vgg16"]),
        ("commsched machine new --gpu ", ["a100", "h100"], ["summit", "mine.json"]),
        ("commsched list ", ["nets", "codecs"], ["mine.json"]),
        ("commsched explain ha", ["halving-doubling", "hash-bitmap:16"], ["zen"]),
        ("commsched export mine.json --to ", ["goal", "chakra"], ["mine.json"]),
        ("commsched show m", ["mine.json"], ["bert-base"]),
        ("commsched simulate ", ["mine.json"], ["bert-base"]),
        ("commsched export mine.json -o ", ["functions"], ["mine.json"]),
    ],
)
def test_a_tab_offers_commands_options_names_and_files(line, there, not_there, shell):
    found = offered(*shell, line)
    assert set(there) <= found
    assert found.isdisjoint(not_there)
