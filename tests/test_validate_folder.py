"""The folder of a validation: it goes on with its own settings, and has the files of its rows."""

from dataclasses import replace

from commsched.cli.main import main
from commsched.lab.validate import main as validate_main
from commsched.lab.validate.cells import DENSE, SLEEP, ValidationCell
from commsched.lab.validate.disturbance import Calm
from commsched.lab.validate.fabrics import SharedMemoryFabric, measured_path
from commsched.lab.validate.session import BedSession
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from tests.support.small_plans import graph, machine, plan

CELL = ValidationCell("1x2-shared", "log:1", SLEEP, 1.0, DENSE)


def test_a_folder_goes_on_with_its_own_steps_and_seconds_only(tmp_path, capsys):
    begun = validate_main.ValidationRequest(parts=(), steps=4, seconds=2.0)
    for wanted in (begun, begun, replace(begun, patience=0.0)):
        assert validate_main.validate(wanted, tmp_path, str, print) == []
    for more in (["--steps", "5", "--seconds", "2"], ["--steps", "4"]):
        assert main(["validate", "-o", str(tmp_path), "--bed", "1x2-shared", *more]) == 2
        assert "was begun with other settings" in capsys.readouterr().err
    (tmp_path / "settings.json").write_text("{")
    assert main(["validate", "-o", str(tmp_path), "--bed", "1x2-shared"]) == 2
    assert "settings.json: not valid JSON" in capsys.readouterr().err
    (tmp_path / "settings.json").unlink()  # as older folders are
    assert validate_main.validate(replace(begun, steps=5), tmp_path, str, print) == []


def test_the_files_of_a_run_are_those_of_its_calmest_try(tmp_path):
    stat, made = tmp_path / "stat", plan(graph([1000]), machine(1, 2), ["ring+dense"])
    stat.write_text("cpu  0 0 0 0 0 0 0 0\n")
    tried = []

    class Disturbed(SharedMemoryFabric):
        """Takes more of the processor in every try, and another number of steps."""

        def execute(self, plan, stem, steps, command=()):
            tried.append(simulate(plan, steps + len(tried)).timeline())
            timeline_file.write(measured_path(stem), tried[-1])
            stat.write_text(f"cpu  {100 * len(tried)} 0 0 0 0 0 0 {50 * len(tried) ** 2}\n")
            return tried[-1]

    session = BedSession(
        bed="1x2-shared",
        fabric=Disturbed(2),
        folder=tmp_path,
        seconds=1.0,
        say=print,
        calm=Calm(stat),
    )
    timeline, _ = session.measured(made, CELL, "run", 3)
    assert len(tried) == 3
    assert timeline is tried[0]
    assert timeline_file.read(measured_path(tmp_path / "run")).header == timeline.header
