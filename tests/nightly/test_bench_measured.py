"""`bench planner --part measured` on real ranks."""

from dataclasses import replace

from commsched.lab.bench.measured_plans import (
    MeasuredPlansRequest,
    cells,
    read,
    rows,
)
from commsched.lab.validate.fabrics import SHARED, FabricShape


def test_finished_cells_are_not_run_again(tmp_path):
    wanted = MeasuredPlansRequest(
        folder=tmp_path,
        fabrics=(SHARED,),
        nets=("lstm",),
        kinds=("lossless",),
        shape=FabricShape(1, 2),
        scale=0.1,
        steps=3,
        seconds=1.0,
        turns=1,
        far=1.0,
    )
    (first,) = cells(wanted, lambda sentence: None)
    counted = [[len(run) for run in each.measured] for each in first.runs]
    assert all(each == [1] for each in counted)  # of three steps the first and the last are not
    assert read(tmp_path / "table.json") == [first]
    said: list[str] = []
    *_, within, of_fabric, of_net = rows(wanted, said.append)
    assert [line for line in said if "run" in line or "calibrating" in line] == []
    assert within.result.startswith(f"{int(first.ratio <= 1.03)} of 1 cells")
    assert of_fabric.what.startswith(SHARED)
    assert of_net.what.startswith("lstm")
    for speedup in (of_fabric, of_net):
        assert speedup.result.startswith(f"{first.speedup:.2f} times as fast as ddp-25mb")
    (more,) = cells(replace(wanted, turns=2), lambda sentence: None)  # goes on with the second
    assert [run.measured[:1] for run in more.runs] == [run.measured for run in first.runs]
    assert more.turns == 2
