"""`commsched new` writes plug-ins that obey all laws; `commsched check` finds what breaks one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.exchange import state
from commsched.lab.plug_in_laws import codecs
from tests.support.plug_in_room import room

EXAMPLES = Path("examples")


@pytest.fixture(autouse=True)
def _room():
    with room():
        yield


def checked(file, capsys, *words) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status of a check, and what was seen of each law, by title."""
    status = main(["check", str(file), "--no-run", "--json", *words])
    said = capsys.readouterr()
    laws = json.loads(said.out or "{}")
    told = {
        title: {law["law"]: "FAILS " * (law["holds"] is False) + law["seen"] for law in found}
        for title, found in laws.items()
    }
    return status, told


@pytest.mark.by_day(1)
@pytest.mark.parametrize("kind", ["collective", "codec"])
def test_a_new_plug_in_obeys_all_laws_and_its_test_passes(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"my-{kind}"
    assert main(["new", kind, name]) == 0
    assert "next: commsched check my_" in capsys.readouterr().out
    status, told = checked(f"my_{kind}.py", capsys)
    assert status == 0
    assert len(told[f"{kind} {name}"]) > 6
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_my_{kind}.py"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)
    assert main(["new", kind, name]) == 2
    assert "there is a" in capsys.readouterr().err


def test_files_that_are_there_stay(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("# mine")
    assert main(["new", "codec", "mine", "-o", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert path.read_text() == "# mine"
    assert not (tmp_path / "test_mine.py").exists()


@pytest.mark.parametrize(("file", "name"), [("torus_2d", "torus-2d"), ("int16", "int16:12")])
def test_the_examples_obey_all_laws(file, name, capsys):
    status, told = checked(EXAMPLES / f"{file}.py", capsys, "--ranks", "8,256")
    assert status == 0, told
    (laws,) = told.values()
    assert re.match(r"[\d.]+ ms for 100 MB on 32 x 8 .*ring\+dense", laws["price on 256 ranks"])


# One change each to what `new` writes: what is changed, into what, the law, and what is said.
SPOILT = [
    ("collective", "block + 1, add=True", "block + 1, add=False", "proof", "round 0"),
    ("collective", "merged=k + 1", "merged=k", "proof", "round 0"),
    ("collective", 'Schedule(name="the', 'Schedule(name="a', "text", "is named 'a"),
    ("collective", "Source:", "From:", "text", "'Source:'"),
    ("collective", "ranks + 1) % p", "ranks + k) % p", "proof", "NameError: name 'k'"),
    (
        "collective",
        "    after = (ranks + 1) % p",
        "    ranks = np.random.permutation(p)\n    after = np.roll(ranks, -1)",
        "rounds",
        "two calls make different schedules",
    ),
    ("codec", "out += values", "out -= values", "add", "add is not decode and +"),
    ("codec", "2.0 * (stop", "3.0 * (stop", "sizes", "1 values take 2 B, but nbytes says 3"),
    ("codec", "lossless = False", "lossless = True", "values", "come back changed"),
    ("codec", "np.empty(values, np.uint16)", "np.empty(values)", "sizes", "packet(1) has 8 B"),
    ("codec", "return (values.", "return (abs(values).", "values", "an error below 100%"),
    (
        "codec",
        "(values.view(np.uint32)",
        "(np.nan_to_num(values).view(np.uint32)",
        "broken",
        "nan in a gradient comes back as a number",
    ),
    ("codec", "+= values", "+= np.nan_to_num(values)", "add", "for 1 values, some of them NaN"),
    ("codec", "- start))", "- start) * merged)", "sizes", "2 ranks, take 2 B, but nbytes says 4"),
    (
        "codec",
        "    def packet",
        "    def plain_sum(self, packet, out):\n"
        "        return packet.view(np.float16).astype(np.float32), out\n\n    def packet",
        "add",
        "plain_sum is not decode and +",
    ),
]
# A line that the codec begins with: what is wrong with it, the law, and what is said.
BEGINS = [
    ("values = np.random.permutation(values)", "values", "draw by seed, step, rank"),
    ("values = state['mine'] = values + state.get('mine', 0)", "kept", "say `stateful = True`"),
    ("values = np.r_[values[:256], np.nan_to_num(values[256:])]", "broken", "element 699 of 700"),
]
BEGINS_WITH = "        {}\n        return (values."
SPOILT += [
    ("codec", "        return (values.", BEGINS_WITH.format(line), law, said)
    for line, law, said in BEGINS
]
# One change each to a codec that we ship.
WITHOUT_THE_LAST = "def combine(self, packets, out): super().combine(packets[:-1], out)"
CHANGED = [
    (WITHOUT_THE_LAST, "add", "combine is not decode and + for 1 values"),
    (WITHOUT_THE_LAST, "ranks", "all-gather+changed: the sum is off by"),
    (
        "def encode(self, values, state, start=0):\n"
        "        return super().encode(values * (abs(values) > 1e-20), state, start)",
        "finite",
        "lossless, but tiny values come back changed",
    ),
    (
        "def encode(self, values, state, start=0):\n"
        "        cut = len(values) - (len(values) % 64 == 0)\n"
        "        return super().encode(values * (np.arange(len(values)) != cut), state, start)",
        "values",
        "lossless, but 2048 values come back changed",
    ),
    (
        "def encode(self, values, state, start=0):\n"
        "        turned = np.r_[values[: 2**16], values[2**16 :][::-1]]\n"
        "        return super().encode(turned, state, start)",
        "places",
        "element 90,000 of 100,000 comes back elsewhere",
    ),
    (
        "def encode(self, values, state, start=0):\n"
        "        few = values * (np.arange(len(values)) < 2**16)\n"
        "        return super().encode(few.astype(np.float32), state, start)",
        "places",
        "lossless, but element 90,000 of 100,000 comes back changed",
    ),
    (
        "stateful = True\n\n    def encode(self, values, state, start=0):\n"
        "        state['changed bits'] = np.zeros(len(values) // 8, np.uint8)\n"
        "        return super().encode(values, state, start)\n\n\nkeep('changed ')",
        "kept",
        "it keeps 0.125 B per value, but says `memory = 0`",
    ),
    (
        "stateful = True\n\n    def encode(self, values, state, start=0):\n"
        "        state['changed all'] = values.copy()\n"
        "        return super().encode(values, state, start)\n\n\nkeep('changed ')",
        "kept",
        "it keeps 4 B per value, but says `memory = 0`",
    ),
    (
        "def listed(self, packet, numel):\n"
        "        index, values = super().listed(packet, numel)\n"
        "        return Listed(index, 2 * values)",
        "add",
        "listed does not read what decode reads for 1 values",
    ),
    (
        "def nbytes(self, spec, start, stop, merged): return super().nbytes(spec, start, stop, 1)",
        "sizes",
        "7000 values of density 3%, elements from 1000 on of a sum of 2 ranks, take 3330 B",
    ),
]


@pytest.mark.parametrize(("kind", "old", "new", "law", "said"), SPOILT)
def test_what_breaks_a_law_is_found(kind, old, new, law, said, tmp_path, capsys):
    path = tmp_path / "spoilt.py"
    assert main(["new", kind, "the-spoilt", "-o", str(path)]) == 0
    capsys.readouterr()
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    status, told = checked(path, capsys)
    assert status == 1
    assert said in told[f"{kind} the-spoilt"][law]
    assert told[f"{kind} the-spoilt"][law].startswith("FAILS")
    if law == "proof":
        assert "while 'proof' fails" in told[f"{kind} the-spoilt"]["sums"]


@pytest.mark.parametrize(("method", "law", "said"), CHANGED)
def test_what_a_lossless_codec_of_lists_does_wrong_is_found(method, law, said, tmp_path, capsys):
    path = tmp_path / "changed.py"
    path.write_text(
        "import numpy as np\n\n"
        "from commsched.codecs.coo import Coo\n"
        "from commsched.coding.registry import CODECS\n"
        "from commsched.exchange.state import keep\n"
        "from commsched.kernels.merge import Listed\n\n\n"
        f"class Changed(Coo):\n    name = 'changed'\n\n    {method}\n\n\n"
        "CODECS.add('changed')(Changed())\n"
    )
    status, told = checked(path, capsys)
    assert status == 1
    assert told["codec changed"][law].startswith("FAILS")
    assert said in told["codec changed"][law]


@pytest.mark.parametrize(("refused", "status"), [("p not in (1, 4, 9, 16)", 0), ("p", 1)])
def test_sizes_that_a_collective_refuses_are_skipped_unless_it_refuses_all(
    refused, status, tmp_path, capsys
):
    path = tmp_path / "squares.py"
    assert main(["new", "collective", "squares", "-o", str(path)]) == 0
    capsys.readouterr()
    text = path.read_text().replace("import numpy", "from commsched.errors import *\nimport numpy")
    only = f"\n    if {refused}:\n        raise CommschedError(f'no square: {{p}}')\n    ranks ="
    path.write_text(text.replace("\n    ranks =", only))
    found, told = checked(path, capsys)
    laws = told["collective squares"]
    assert found == status, laws
    assert laws["proof on 8 ranks"] == "no square: 8"
    assert laws["price on 8 ranks"] == "says nothing while 'proof on 8 ranks' is skipped"
    assert laws["proof"].startswith("FAILS" if status else "all-reduce of")


def test_a_shipped_part_of_methods_has_no_sums_and_no_bytes_to_compare(capsys):
    status, told = checked("all-to-all", capsys)
    assert status == 0, told
    assert "does not leave the sum on every rank" in told["collective all-to-all"]["bytes"]


def test_what_a_file_registers_is_found_whoever_has_made_it(tmp_path):
    path = tmp_path / "made.py"
    path.write_text(
        "from functools import partial\n"
        "import numpy as np\n\n"
        "from commsched.codecs.coo import Coo\n"
        "from commsched.coding.registry import CODECS\n"
        "from commsched.schedule.registry import COLLECTIVES\n\n"
        "mine = Coo()\nmine.name = 'my-coo'\nCODECS.add('my-coo')(mine)\n\n"
        "def ring(name, group):\n    return COLLECTIVES['ring'](group)\n\n"
        "COLLECTIVES.add('my-ring')(partial(ring, 'my-ring'))\n\n"
        "class Mine(Coo):\n    def __init__(self, words):\n        self.name = f'a:{words[0]}'\n\n"
        "CODECS.family('a:3', listed=False)(Mine)\n"
    )
    words = [sys.executable, "-m", "commsched", "check", str(path), "--no-run", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert set(json.loads(done.stdout)) == {"collective my-ring", "codec a:3", "codec my-coo"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('    name = "the-cut"\n', "", "codec 'the-cut' lacks the attribute 'name'"),
        ("def add(", "def plus(", "abstract method '?add'?"),
        ("TheCut())", "TheCut)", "must be an object of a subclass of Codec"),
    ],
)
def test_a_codec_that_lacks_something_is_one_sentence(old, new, said, tmp_path, capsys):
    path = tmp_path / "cut.py"
    assert main(["new", "codec", "the-cut", "-o", str(path)]) == 0
    path.write_text(path.read_text().replace(old, new, 1))
    capsys.readouterr()
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr().err
    assert re.search(said, told)
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "rign"], "nearest: 'ring'"),
        (["check", "ring", "--ranks", "12"], "take 8 or 16"),
        (["check", "ring", "--ranks", "0"], "whole numbers such as 8,1024"),
        (["check", "examples/train_text.py"], "registers no collective and no codec"),
        (["new", "codec", "Mine"], "small letters, digits and hyphens"),
        (["new", "codec", "mine", "-o", "my-codec.py"], "Python imports no such file"),
        (["new", "collective", "np"], "its file would use the name 'np' for something else, too"),
        (["new", "codec", "bucket-spec"], "use the name 'BucketSpec' for something else"),
        (["new", "collective", "numpy"], "numpy.py would hide Python's module 'numpy'"),
    ],
)
def test_refusals_are_one_sentence(words, said, capsys):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        *("terngrad", "quant:8", "qsgd", "topk:1%", "adaqp:4:5", "binary-tree"),
        *("sign:vote", "dense", "randomk:0.01", "elias", "fft:0.15"),
    ],
)
def test_what_is_shipped_obeys_all_laws_under_any_name(name, capsys):
    assert main(["check", name, "--no-run"]) == 0, capsys.readouterr().out


def test_a_codec_that_is_wrong_in_the_mean_says_that_it_is_unbiased(monkeypatch):
    codec = CODECS["topk:0.1"]
    monkeypatch.setattr(type(codec), "unbiased", True, raising=False)
    with pytest.raises(Exception, match="unbiased, but the mean of 100 draws is off"):
        codecs._bias(codec)


def test_a_codec_whose_state_no_checkpoint_holds_is_told_how(monkeypatch):
    monkeypatch.setattr(state, "FAMILIES", [])
    with pytest.raises(Exception, match="what it keeps is not stored"):
        codecs._kept(CODECS["adaqp:4:5"])
    state.keep("adaqp ")
    codecs._kept(CODECS["adaqp:4:5"])


@pytest.mark.parametrize("method", ["ring+dense", "zen"])
def test_a_plug_in_that_is_not_there_is_named_whatever_is_asked(method):
    words = ["price", "1e6", "--machine", "summit", "--method", method, "--plugin", "not.py"]
    done = subprocess.run(
        [sys.executable, "-m", "commsched", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "not.py" in done.stderr


def test_a_plug_in_that_fails_is_told_where_only_a_name_is_looked_up(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_that_name")
    for plug_in in (path, tmp_path / "not.py"):
        words = ["explain", "ring", "--plugin", str(plug_in)]
        done = subprocess.run(
            [sys.executable, "-m", "commsched", *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"commsched: plug-in {plug_in}")
