"""`commsched.torch` on two ranks: attach against MPI_Allreduce of the same net, and capture."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.support.jobs import Ended, Job, Single

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

LIMIT = 120  # s, of a job that hangs
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NAMES = [
    name
    for path in sorted(Path(__file__).with_name("support").glob("torch_*checks.py"))
    for name in re.findall(r"^@check\ndef (\w+)", path.read_text(), re.MULTILINE)
]
BEGIN = """
import sys, torch
from torch import nn
from commsched.torch import attach
from tests.support.torch_nets import WORDS, batch, loss_of, make, plan_of
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
"""


def run(*command: str, ranks: int = 2) -> Ended:
    with Job(ranks, [sys.executable, *command], variables=ONE_THREAD) as job:
        return job.wait(LIMIT)


@pytest.fixture(scope="module")
def output() -> str:
    """What two ranks say of all checks: importing torch takes longer than the checks."""
    return run("-m", "tests.support.torch_job").output


@pytest.mark.parametrize("name", NAMES)
def test_on_two_ranks(name, output):
    found = re.search(rf"<{name}>(.*?)</{name}>", output, re.DOTALL)
    assert found, output
    assert found[1] == "ok"


def test_data_parallel_says_in_one_line_what_it_keeps(output):
    lines = re.findall(r"^commsched: DataParallel: (.*)$", output, re.MULTILINE)
    assert len(lines) == 2  # two models
    for line in lines:
        kept = r"keeps the (plan|dense buckets): \S+ \w+ a step with .*, \S+ \w+ with dense buckets"
        assert re.match(kept, line) or line == "dense buckets of 25 MB are the best plan"


def test_an_uncaught_exception_on_one_rank_ends_the_job():
    program = """
model = make("mlp")
attach(model, plan_of(model, 2))
for step in range(3):
    if (step, rank) == (1, 1):
        1 / 0
    loss_of(model, *batch("mlp", step, rank)).backward()
"""
    done = run("-c", BEGIN + program)
    assert done.status != 0
    assert "commsched: rank 1: Traceback" in done.output
    assert "ZeroDivisionError" in done.output


def test_a_hook_of_ddp_with_a_plan_of_another_model_ends_the_job_with_a_sentence(tmp_path):
    program = """
from torch import distributed
from commsched.torch import hook
store = distributed.FileStore(sys.argv[1], 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = nn.parallel.DistributedDataParallel(make("mlp"))
model.register_comm_hook(*hook(plan_of(make("lstm"), 2)))
loss_of(model, *batch("mlp", 0, rank)).backward()
"""
    done = run("-c", BEGIN + program, str(tmp_path / "store"))
    assert done.status != 0
    assert "the model trains no parameter 'words.weight'; capture this model" in done.output


def test_a_hook_of_ddp_skips_steps_with_a_scaler_and_leaves_out_what_is_unused(tmp_path):
    program = """
from torch import distributed
from commsched.torch import hook
store = distributed.FileStore(sys.argv[1], 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
plan = plan_of(make("mlp"), 2)
model = make("mlp")
model.unused = nn.Linear(2, 2)
ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)
ddp.register_comm_hook(*hook(plan, skip_overflow=True))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=.1), torch.amp.GradScaler("cpu")
for step in range(3):
    optimizer.zero_grad()
    scale = float("inf") if (step, rank) == (1, 1) else 1.0
    before = model[0].weight.detach().clone()
    scaler.scale(loss_of(ddp, *batch("mlp", step, rank)) * scale).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model[0].weight) == (step == 1)
    every = MPI.COMM_WORLD.allgather(model[0].weight.detach().numpy())
    assert (every[0] == every[1]).all()
assert scaler.get_scale() == 2**15
print("as expected")
"""
    done = run("-c", BEGIN + program, str(tmp_path / "store"))
    assert done.status == 0, done.output
    assert done.output.count("as expected") == 2


def test_a_script_need_not_close_and_a_gradient_of_another_layout_is_one_sentence():
    program = """
model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, 4))
def scattered(parameter):
    parameter.grad = parameter.grad.to_sparse()
model[0].weight.register_post_accumulate_grad_hook(scattered)
attach(model, plan_of(model, 2))
try:
    model(torch.tensor([1, 2])).sum().backward()
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
other = make("mlp")
attach(other, plan_of(other, 2))
loss_of(other, *batch("mlp", 0, rank)).backward()
"""
    done = run("-c", BEGIN + program)
    assert done.status == 0, done.output
    said = "parameter '0.weight' has a gradient of layout torch.sparse_coo that is no list of rows"
    assert done.output.count(said) == 2, done.output


def test_nothing_else_imports_torch():
    code = (
        "import sys, commsched.run.exchanger, commsched.train.job, commsched.cli.main\n"
        "print('torch' in sys.modules)"
    )
    assert run("-c", code, ranks=1).output.splitlines()[-1] == "False"


def test_torchrun_is_told_how_to_start_the_ranks():
    program = "model = make('mlp')\nattach(model, plan_of(model, 2))\n"
    variables = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
    with Single(sys.executable, "-c", BEGIN + program, variables=variables) as job:
        done = job.wait(LIMIT)
    assert done.status != 0
    assert "start them with 'mpiexec -n 2 python SCRIPT.py'" in done.output
