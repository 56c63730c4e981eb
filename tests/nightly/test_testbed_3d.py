"""Tensor x pipeline x ZeRO on 8 ranks of shaped hosts: measured, compared, and learnt the same."""

import json

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.lab.testbed import system
from commsched.lab.testbed.bed import Testbed
from commsched.lab.validate.fabrics import ShapedFabric
from commsched.train.registry import NETS
from tests.nightly.test_testbed import SECONDS
from tests.test_train import started

REASON = system.lacking()
NET, BATCH, STEPS, TENSOR = "gpt:64:2:4", 32, 10, 2
TRAIN = ("train", "--net", NET, "--batch", str(BATCH), "--steps", str(STEPS))
TRAIN += ("--optimizer", "momentum", "--evaluate", str(STEPS), "--every", str(STEPS))


def parameters(folder, ranks):
    """Whole parameters by name, from the checkpoints of all ranks; replicas hold equal bits."""
    kept = [np.load(folder / f"step{STEPS}" / f"rank{rank}.npz") for rank in range(ranks)]
    found = {}
    for first in range(0, ranks, min(TENSOR, ranks)):
        team = kept[first : first + min(TENSOR, ranks)]
        for name, start in NETS[NET].tensors.items():
            if (key := f"/learner/{name}/value") in team[0]:
                own = [each[key] for each in team]
                whole = own[0] if start.cut is None or len(own) == 1 else start.cut.joined(own)
                assert np.array_equal(found.setdefault(name, whole), whole)
    assert found.keys() == NETS[NET].tensors.keys()
    return found


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_3d_plan_runs_on_eight_ranks_and_learns_what_one_process_learns(tmp_path, capsys):
    net, plan, predicted, measured = (
        str(tmp_path / f"{name}.json") for name in ("net", "plan", "predicted", "measured")
    )
    with Testbed.up(4, 2, ["200mbit"]) as bed:
        fabric = ShapedFabric(bed, 4 * SECONDS)
        fabric.run("calibrate", "-o", str(tmp_path / "bed.json"), "--seconds", "20")
        fabric.run("profile", NET, "--batch", "4", "--optimizer", "momentum", "-o", net)
        words = [f"--param={degree}=2" for degree in ("tensor", "pipeline")]
        words += ["--param=zero=1", "--param=microbatches=4", "--param=optimizer=momentum"]
        words += ["--machine", str(tmp_path / "bed.json"), "--strategy", "3d", "-o", plan]
        assert main(["plan", net, *words]) == 0
        words = ["--plan", plan, "--strategy", "3d", "-o", measured]
        fabric.run(*TRAIN, *words, "--checkpoint", str(tmp_path / "many"))
    assert main(["simulate", plan, "-o", predicted]) == 0
    capsys.readouterr()
    assert main(["compare", predicted, measured, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["ranks"], compared["steps"]["measured"]["steps"]) == (8, STEPS)
    assert compared["iteration_median"]["measured_seconds"] > 0
    words = ["--method", "ring+dense", "--checkpoint", str(tmp_path / "one")]
    assert started(1, *TRAIN[1:], *words).status == 0
    one, many = parameters(tmp_path / "one", 1), parameters(tmp_path / "many", 8)
    for name, values in one.items():  # a product in two parts rounds otherwise than in one
        np.testing.assert_allclose(many[name], values, rtol=0, atol=2e-6, err_msg=name)
