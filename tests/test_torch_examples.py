"""The closed loop of a PyTorch script: captured and trained on two ranks, with a plan between."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from tests.support.jobs import ROOT, Ended, Job

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

LIMIT = 100  # s
STEPS = ("--steps", "21")


def run(*command: str) -> Ended:
    with Job(2, [sys.executable, *command], variables={"OMP_NUM_THREADS": "1"}) as job:
        return job.wait(LIMIT)


def losses(*command: str) -> list[float]:
    done = run(*command)
    assert done.status == 0, done.output
    return [float(x) for x in re.findall(r"^step +\d+  loss (\S+)$", done.output, re.MULTILINE)]


def planned(example: str, folder: Path, *options: str, batch: int = 8) -> str:
    """The path of a plan for what two ranks captured of an example."""
    net, plan = folder / "net.json", folder / "plan.json"
    words = ("capture", f"examples/{example}.py:build", "-o", str(net), "--steps", "3")
    done = run("-m", "commsched", *words)
    assert done.status == 0, done.output
    assert f"written to {net}" in done.output
    assert net_file.read(net).batch == batch
    machine = ("--machine", "localhost", "--lanes", "2")
    assert main(["plan", str(net), *machine, *options, "-o", str(plan)]) == 0
    return str(plan)


def test_a_gpt_learns_the_same_by_attach_and_by_the_hook_of_ddp(tmp_path):
    plan = planned("torch_gpt", tmp_path)
    found = losses("examples/torch_gpt.py", plan, *STEPS)
    assert len(found) == 3
    assert found[-1] < 0.7 * found[0]
    assert losses("examples/torch_ddp_hook.py", plan, *STEPS) == pytest.approx(found, abs=1e-4)


def test_a_resnet_learns(tmp_path):
    found = losses("examples/torch_resnet.py", planned("torch_resnet", tmp_path), *STEPS)
    assert found[-1] < 0.7 * found[0]


def test_a_dlrm_learns_with_tables_that_travel_as_lists(tmp_path):
    zen = [word for k in range(4) for word in ("--force", f"tables.{k}.weight=zen")]
    path = planned("torch_dlrm", tmp_path, *zen, batch=128)
    tensor = plan_file.read(path).net.tensors["tables.0.weight"]
    assert tensor.sparsity.law == "zipf"
    assert tensor.sparsity.density < 0.01
    found = losses("examples/torch_dlrm.py", path, *STEPS)
    assert found[-1] < 0.7 * found[0]


def test_a_profile_under_ddp_and_the_meta_device_give_the_same_tensors_and_work(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    trace, operators = str(tmp_path / "trace.json.gz"), str(tmp_path / "operators.json.gz")
    done = run("examples/torch_profile.py", trace, "--steps", "2", "--operators", operators)
    assert done.status == 0, done.output
    nets = []
    for words in (
        ("import", trace),
        ("import", operators),
        ("capture", str(ROOT / "examples/torch_gpt.py:build"), "--meta"),
    ):
        path = str(tmp_path / "net.json")
        assert main([*words, "-o", path]) == 0
        nets.append(net_file.read(path))
    shapes = [sorted(t.shape for t in net.tensors.values()) for net in nets]
    assert shapes[0] == shapes[1] == shapes[2]
    work = [sum(layer.forward_flops for layer in net.layers) for net in nets]
    assert work[0] == work[1]
    assert work[2] == pytest.approx(work[1], rel=0.01)
    assert sum(layer.backward for layer in nets[0].layers) > 0


def test_each_example_has_fewer_than_80_lines():
    paths = list((ROOT / "examples").glob("torch_*.py"))
    assert len(paths) == 6
    assert all(len(path.read_text().splitlines()) < 80 for path in paths)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("train.py", "train.py: write SCRIPT.py:FUNCTION, such as train.py:build"),
        ("no.py:build", "no.py: there is no such script"),
        ("examples/torch_gpt.py:make", "examples/torch_gpt.py has no function 'make'"),
        ("examples/torch_gpt.py:Gpt", "must return (model, loss, optimizer, batches), got Gpt"),
    ],
)
def test_a_script_that_builds_nothing_is_one_sentence(
    where, sentence, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["capture", where, "-o", str(tmp_path / "net.json")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_a_model_that_is_not_run_is_written_once_and_takes_no_steps(tmp_path, capsys):
    words = ("capture", str(ROOT / "examples/torch_gpt.py:build"), "--meta")
    output = ("-o", str(tmp_path / "net.json"))
    assert main([*words, "--steps", "3", *output]) == 2
    assert "--steps needs steps that are run; leave out --meta" in capsys.readouterr().err
    done = run("-m", "commsched", *words, *output)
    assert done.status == 0, done.output
    assert done.output.count("written to ") == 1
