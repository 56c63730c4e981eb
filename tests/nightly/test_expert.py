"""Experts on ranks under MPI: a run sends what is predicted."""

import pytest

from commsched.cli.main import main
from commsched.timeline import file as timeline_file
from tests.support.rank_server import on_ranks


@pytest.mark.parametrize("more", [("send=bf16", "zipf=1"), ("send=quant:8", "capacity=1")])
@pytest.mark.parametrize(("expert", "nodes"), [("4", "1"), ("2", "2")])
def test_a_run_sends_the_bytes_that_are_predicted_operation_by_operation(
    expert, nodes, more, tmp_path
):
    plan, measured, predicted = (str(tmp_path / f"{x}.json") for x in ("plan", "run", "simulated"))
    words = ["plan", "gpt-moe-8", "--machine", "localhost", "--strategy", "expert"]
    words += ["--nodes", nodes, "--lanes", str(4 // int(nodes)), "--scale", "1e-3"]
    for param in (f"expert={expert}", *more):
        words += ["--param", param]
    assert main([*words, "-o", plan]) == 0
    assert main(["simulate", plan, "--steps", "3", "-o", predicted]) == 0
    done = on_ranks(4, "run", plan, "--steps", "3", "-o", measured, seconds=200)
    assert done.status == 0, done.output
    rows = [
        {
            (s.rank, s.step, s.stream, s.name): s.nbytes
            for s in timeline_file.read(path)
            if s.step < 3
        }
        for path in (predicted, measured)
    ]
    assert rows[0] == rows[1]
    sends = [n for (*_, name), n in rows[1].items() if "/dispatch/" in name and n]
    assert sends
