"""The picture of a study: lines, map and front, break-evens, notes that have room."""

import re

import pytest
from matplotlib.figure import Figure

from commsched.cli.main import main
from commsched.plot.panel_notes import Note, write_notes
from commsched.plot.study import StudyPicture, draw
from commsched.plot.study_columns import break_evens, front
from commsched.study import rows


def texts(path):
    return re.findall(r">([^<>\n]+)</text>", path.read_text())


def drawn(path, table, *words):
    assert main(["plot", str(table), "-o", str(path), *words]) == 0
    return texts(path)


@pytest.mark.by_day(0)
def test_a_table_is_drawn_as_lines_map_and_front(tmp_path, capsys):
    table, picture = tmp_path / "sweep.csv", tmp_path / "sweep.svg"
    words = ["--net", "vgg16", "--machine", "p3.16xlarge,summit", "--nodes", "2", "--planner"]
    words += ["ddp-25mb,all-topk", "--allow", "-,topk", "--bandwidth", "1gbit,10gbit,400gbit"]
    assert main(["sweep", *words, "-o", str(table), "--figure", str(picture)]) == 0
    lines = texts(picture)
    assert lines == drawn(picture, table)
    assert {"p3.16xlarge", "summit", "step in ms", "Gbit/s of a node's port"} <= set(lines)
    assert {"1", "10", "400"} <= set(lines)
    # Without topk all-topk has no plan, and ddp-25mb is the same with topk: one line.
    assert set(lines[-2:]) == {"ddp-25mb, lossless = ddp-25mb, topk", "all-topk, topk"}
    some = ("--where", "allow=topk")
    steps = {
        f"{row['step_seconds'] * 1e3:.3g}"
        for row in rows.read(table)
        if row["machine"] == "summit" and row["allow"] == "topk"
    }
    words = ("--where", "machine=summit", "--y", "planner", "--value", "step")
    assert steps <= set(drawn(picture, table, *some, *words))
    assert "10 Gbit/s" in drawn(picture, table, "--pareto", "memory")
    prices = ("--price-per-hour", "summit=10", "--price-per-hour", "p3.16xlarge=24.48")
    words = ("--where", "bandwidth=10", "--pareto", "money")
    assert "nothing is better" in drawn(picture, table, *some, *prices, *words)
    for words, sentence in (
        (("--y", "stepp"), "no column 'stepp'.*nearest: 'step'"),
        (("--pareto", "money"), "--price-per-hour MACHINE=MONEY"),
        (("--where", "net=resnet50"), "no row has"),
        (("--y", "net", "--value", "step"), "differ in .*--where"),
    ):
        assert main(["plot", str(table), "-o", str(picture), *words]) == 2
        assert re.search(sentence, capsys.readouterr().err)


def at(x, allow, step, net=""):
    axes = dict.fromkeys(("machine", "planner", "method", "strategy", "set", "compute"), "")
    found = {**axes, "net": net, "allow": allow}
    return {**found, "port_bits_per_second": x * 1e9, "step_seconds": step}


def test_a_break_even_lies_where_the_saved_share_crosses_one_percent():
    plain = [at(1, "", 1.0), at(100, "", 1.0)]
    for ends, below in ((0.98, 1.0), True), ((1.0, 0.98), False):
        codec = [at(x, "fp16", step) for x, step in zip((1, 100), ends, strict=True)]
        ((row, x, pays_below),) = break_evens([*plain, *codec], "bandwidth")
        assert (row["allow"], x, pays_below) == ("fp16", pytest.approx(10.0), below)
    assert not list(break_evens([*plain, at(1, "fp16", 0.9), at(100, "fp16", 0.9)], "bandwidth"))


def test_lines_upon_each_other_are_named_together(tmp_path):
    table = [at(x, allow, 1.0, "still") for x in (1, 9) for allow in ("", "fp16", "topk")]
    draw(table, tmp_path / "one.svg", StudyPicture(lines=("allow",)))
    assert texts(tmp_path / "one.svg")[-1] == "lossless = fp16 = topk"
    saved = {"": (1.0, 1.0), "fp16": (0.9, 1.0), "topk": (0.9, 1.0)}
    moves = [at(x, name, saved[name][x > 1], "moves") for x in (1, 9) for name in saved]
    draw(moves, tmp_path / "two.svg", StudyPicture(lines=("allow",), break_even=True))
    assert texts(tmp_path / "two.svg")[-2:] == ["lossless", "fp16 = topk"]
    moves = [{**row, "step_seconds": x} for x, row in enumerate(moves)]
    draw(table + moves, tmp_path / "all.svg", StudyPicture(lines=("allow",)))
    assert texts(tmp_path / "all.svg")[-3:] == ["lossless", "fp16", "topk"]
    assert texts(tmp_path / "all.svg").count("lossless = fp16 = topk") == 1  # in its panel


@pytest.mark.parametrize("width", [1.0, 1.6, 4.0])
def test_notes_stay_in_their_panel_and_above_the_data(width):
    figure = Figure((width, 1.5), layout="constrained")
    panel = figure.subplots()
    panel.plot([1, 2], [0, 7])
    figure.draw_without_rendering()
    words = ["fp16 = topk:0.01 pays below 24.5 Gbit/s", "onebit pays above 3.25 Gbit/s"]
    write_notes(panel, [Note(text, "black") for text in words], 6.0)
    figure.draw_without_rendering()
    assert [" ".join(text.get_text().split()) for text in panel.texts] == words
    for text in panel.texts:
        around = text.get_window_extent()
        assert panel.bbox.x0 <= around.x0 < around.x1 <= panel.bbox.x1
        assert around.y1 <= panel.bbox.y1 + 1  # pixel
        assert around.y0 > panel.transData.transform((2, 7))[1]


def test_a_front_has_what_nothing_else_is_better_than():
    points = [(1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0)]
    assert front(points) == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]


def test_the_legend_names_the_line_of_a_front_where_there_is_one(tmp_path):
    rows = [
        at(1, allow, step) | {"memory_bytes_per_rank": memory * 1e9}
        for allow, step, memory in (("", 2.0, 1.0), ("fp16", 1.0, 1.0), ("topk", 0.5, 3.0))
    ]
    for some, named in (
        (rows, ["lossless", "fp16", "topk", "nothing is better"]),
        (rows[:2], ["lossless", "fp16"]),  # one is best in all
        (rows[:1], []),
    ):
        draw(some, tmp_path / "front.svg", StudyPicture(pareto="memory"))
        found = texts(tmp_path / "front.svg")
        assert found[found.index("memory per rank in GB") + 1 :] == named


def test_a_front_compares_times_per_batch(tmp_path):
    rows = [
        at(1, strategy, step) | {"memory_bytes_per_rank": memory * 1e9, "batches": batches}
        for strategy, step, memory, batches in (("a", 2.0, 1.0, 1), ("b", 4.0, 2.0, 8))
    ]
    draw(rows, tmp_path / "front.svg", StudyPicture(pareto="memory"))
    assert {"time per batch in ms", "nothing is better"} <= set(texts(tmp_path / "front.svg"))
    sent = [one | {"sent_bytes_per_rank": one["batches"] * 1e6} for one in rows]
    draw(sent, tmp_path / "sent.svg", StudyPicture(pareto="bytes"))
    assert "sent per rank and batch in MB" in texts(tmp_path / "sent.svg")
    alike = [one | {"batches": 8} for one in rows]
    draw(alike, tmp_path / "alike.svg", StudyPicture(pareto="memory"))
    found = texts(tmp_path / "alike.svg")
    assert "step in ms" in found
    assert "nothing is better" not in found


def test_columns_that_the_axis_decides_keep_no_rows_apart():
    rows = [
        at(1, codec, step) | {"ranks": ranks, "nodes": ranks // 8}
        for ranks, lossless, half in ((32, 2.0, 2.0), (64, 3.0, 2.0))
        for codec, step in (("", lossless), ("fp16", half))
    ]
    (found,) = break_evens(rows, "ranks")
    assert (found.row["allow"], found.below) == ("fp16", False)
    assert 32 < found.x < 64


def test_break_evens_over_ranks_are_found_on_every_machine_of_a_panel(tmp_path):
    rows = [
        at(1, codec, step) | {"machine": machine, "ranks": nodes * lanes, "nodes": nodes}
        for machine, lanes in (("a", 8), ("b", 16))
        for nodes, lossless, half in ((4, 2.0, 2.0), (8, 3.0, 2.0))
        for codec, step in (("", lossless), ("fp16", half))
    ]
    one, other = break_evens(rows, "ranks", ("machine", "allow"))
    assert [one.below, other.below] == [False, False]
    assert 32 < one.x < 64
    assert other.x == pytest.approx(2 * one.x)
    wanted = StudyPicture(x="ranks", lines=("machine", "allow"), break_even=True)
    draw(rows, tmp_path / "ranks.svg", wanted)
    said = " ".join(texts(tmp_path / "ranks.svg"))
    assert f"fp16 pays above {one.x:.3g} ranks" in said
    assert f"fp16 pays above {other.x:.3g} ranks" in said
