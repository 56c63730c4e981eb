"""`commsched.torch.DataParallel` with a calibration of its own, on the examples' nets."""

import importlib.util
import re
import sys

import pytest

from tests.support.jobs import ROOT, Job

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1] + "/examples")
import torch, {example} as example
from torch.nn import functional
from mpi4py import MPI
from commsched.torch import DataParallel
model, _, optimizer, batches = example.build()
parallel = DataParallel(model)
for step in range(80):
    optimizer.zero_grad()
    batch = batches[step % len(batches)]
    value = {loss}
    value.backward()
    optimizer.step()
    if MPI.COMM_WORLD.rank == 0 and step in (0, 79):
        print("loss", value.item(), flush=True)
mine = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
other = MPI.COMM_WORLD.bcast(mine)
print(f"equal {{bool((mine == other).all())}}\\n", end="", flush=True)
"""
GPT = "functional.cross_entropy(parallel(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())"
DLRM = "functional.binary_cross_entropy_with_logits(parallel(*batch[:2]), batch[2])"


@pytest.mark.parametrize(("example", "loss"), [("torch_gpt", GPT), ("torch_dlrm", DLRM)])
def test_it_calibrates_plans_and_keeps_what_is_faster(example, loss, tmp_path):
    program = PROGRAM.format(example=example, loss=loss)
    command = [sys.executable, "-c", program, str(ROOT)]
    variables = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    with Job(2, command, variables=variables) as job:
        done = job.wait(200)
    assert done.status == 0, done.output
    first, last = (float(x) for x in re.findall(r"^loss (\S+)$", done.output, re.MULTILINE))
    assert last < 0.7 * first
    assert done.output.count("equal True") == 2
    assert len([*(tmp_path / "commsched" / "machines").iterdir()]) == 1  # for the next time
    (line,) = re.findall(r"^commsched: DataParallel: (.*)$", done.output, re.MULTILINE)
    measured = re.findall(r"([\d.]+) ms", line)
    if line.startswith("keeps the plan"):
        assert float(measured[0]) < float(measured[1])
