"""Pictures: they are written, say what they show, and stay readable."""

import itertools
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.plot import colours, timeline, view
from commsched.plot.html import page_data
from commsched.plot.picture import picture
from commsched.plot.style import Style
from commsched.timeline import measure
from commsched.timeline.file import write
from commsched.timeline.header import Predicted, RunHeader, header_from_data
from commsched.timeline.model import Span, Timeline
from commsched.training_log import LogHeader, TrainingLog

HASH = "3fa9c1d2e4b5a697" * 4
STREAMS = ("compute", "encode", "inside", "between", "decode")


def training(ranks=4, buckets=30, steps=4, kind="predicted", slower=0.0, seed=0):
    """Steps of forward, backward, encode, exchanges in two streams, decode and apply.

    An exchange is over on all ranks at once, some time after the last one came. `slower` stretches
    the exchanges and, at random, everything else.
    """
    rng, spans, begin = np.random.default_rng(seed), [], np.zeros(ranks)
    for step in range(steps):
        begin = _step(spans, begin, buckets, step, slower, rng)
    made = Timeline.of(
        spans,
        header=header_from_data(kind, {"net": "resnet50"}),
        plan_hash=HASH,
        ranks=ranks,
        streams=STREAMS,
    )
    return measure.waiting_filled(made)


def _step(spans, begin, buckets, step, slower, rng):
    share = np.linspace(0.4, 1.6, buckets) / buckets  # of the step's work

    def lay(stream, name, start, seconds):
        end = start + seconds * (1 + slower * rng.random(len(start)))
        if stream in ("inside", "between"):
            end = np.full(len(start), start.max() + seconds * (1 + slower))
        for r in range(len(start)):
            nbytes = int(seconds * 1e9) if stream in ("inside", "between") else 0
            spans.append(Span(r, stream, name, step, start[r], end[r], 0.0, nbytes))
        return end

    now = begin
    for b in range(buckets):
        now = lay("compute", f"forward/layer{b}", now, 0.020 * share[b])
    free, done = dict.fromkeys(STREAMS, now), now
    for b in reversed(range(buckets)):
        ready = now = lay("compute", f"backward/layer{b}", now, 0.040 * share[b])
        for stream, seconds in zip(STREAMS[1:], (0.008, 0.010, 0.045, 0.008), strict=True):
            if stream in ("inside", "between") or b % 3 == 0:
                name = f"b{b}/{stream}" if "code" in stream else f"b{b}/{stream}/exchange"
                ready = lay(stream, name, np.maximum(ready, free[stream]), seconds * share[b])
                free[stream] = ready
        done = np.maximum(done, ready)
    return lay("compute", "b0/apply", np.maximum(now, done), 0.003)


@pytest.fixture
def both():
    return training(), training(kind="measured", slower=0.1, seed=1)


@pytest.mark.by_day(0)
def test_a_png_is_a_png(both, tmp_path):
    timeline.draw(both, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [file.name for file in tmp_path.iterdir()] == ["t.png"]


def test_an_svg_says_what_it_shows(both, tmp_path):
    timeline.draw(both, tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    for words in (
        "resnet50, 4 ranks, plan 3fa9c1d2e4b5, step",
        "ms predicted",
        "ms measured, error -",
        "rank 3",
        "backward",
        "exposed: compute is idle",
        "b29",
    ):
        assert words in text


@pytest.mark.by_day(0)
def test_the_same_picture_is_the_same_file(both, tmp_path):
    for name in ("a.svg", "b.svg"):
        timeline.draw(both, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.fixture
def figure_of(tmp_path, monkeypatch):
    """Draw, and return the figure that was written, with its renderer."""
    figures = []

    @contextmanager
    def kept(*args):
        with picture(*args) as figure:
            figures.append(figure)
            yield figure

    def drawn(*args, **style):
        monkeypatch.setattr(timeline, "picture", kept)
        timeline.draw(*args[:1], tmp_path / "kept.svg", *args[1:], style=Style(**style))
        canvas = FigureCanvasAgg(figures[-1])
        canvas.draw()  # the legend finds its place
        return figures[-1], canvas.get_renderer()

    return drawn


@pytest.mark.by_day(1)
@pytest.mark.parametrize("width", [14.0, 3.3])
@pytest.mark.parametrize("buckets", [3, 30, 100])
def test_no_text_meets_another_or_leaves_the_sheet_and_labels_stay_in_bars(
    figure_of, buckets, width
):
    sides = [training(buckets=buckets), other_plan(training(buckets=buckets, slower=0.3))]
    figure, renderer = figure_of(sides, None, [0, 1], width=width)
    axes = figure.axes[0]
    end = axes.get_xlim()[1]
    ticks = axes.xaxis.majorTicks
    beyond = [tick.label1 for tick in ticks if not 0 <= tick.get_loc() <= end]  # not drawn
    shown = (text for text in figure.findobj(Text) if text.get_text() and text.get_visible())
    texts = [text for text in shown if text not in beyond]
    boxes = [text.get_window_extent(renderer) for text in texts]
    wrong = [
        (a.get_text(), b.get_text())
        for (a, x), (b, y) in itertools.combinations(zip(texts, boxes, strict=True), 2)
        if x.padded(-0.5).overlaps(y.padded(-0.5))
    ]
    assert wrong == []
    sheet = figure.bbox
    outside = [
        text.get_text()
        for text, x in zip(texts, boxes, strict=True)
        if x.x0 < 0 or x.x1 > sheet.x1 or x.y0 < 0 or x.y1 > sheet.y1
    ]
    assert outside == []
    bars = [
        axes.transData.transform(path.get_extents().get_points())
        for collection in axes.collections
        if collection.get_zorder() == 2
        for path in collection.get_paths()
    ]
    labels = [x for text, x in zip(texts, boxes, strict=True) if text.zorder == timeline.LANES]
    assert labels or (buckets, width) != (3, 14.0)
    for box in labels:
        assert any(
            low[0] <= box.x0 and box.x1 <= high[0] and low[1] <= box.y0 and box.y1 <= high[1]
            for low, high in bars
        )


def other_plan(t):
    """The same timeline under another plan's hash."""
    return replace(t, plan_hash="7" * 64)


def test_two_plans_of_one_net_share_the_time_axis_and_other_nets_are_refused(figure_of, tmp_path):
    short = training(buckets=3)
    longer = other_plan(training(buckets=3, slower=0.5))
    figure, _ = figure_of([longer, short], names=("dense", "fp16"), title="mine")
    said = [text.get_text() for text in figure.findobj(Text)]
    lasted = [f" step {measure.iteration_seconds(t)[1] * 1e3:.2f} ms" for t in (longer, short)]
    steps = [text for text in said if text.startswith(" step ")]
    assert sorted(steps) == sorted(lasted)  # each side once
    assert {"dense, rank 0", "mine"} <= set(said)
    assert any(text.startswith("fp16, rank 0, first of 4 alike") for text in said)
    assert figure.axes[0].get_xlim()[1] == pytest.approx(view.view(longer, 1).length * 1e3, rel=0.1)
    huge = replace(short, header=header_from_data("predicted", {"net": "huge"}))
    with pytest.raises(CommschedError, match="different nets: resnet50 and huge"):
        timeline.draw([short, huge], tmp_path / "t.png")


def test_a_picture_has_the_size_and_the_lanes_that_are_asked_for(figure_of, tmp_path):
    figure, _ = figure_of([training()], width=3.3, height=2.0, lanes=("compute", "between"))
    assert figure.get_size_inches().tolist() == [3.3, 2.0]
    said = {text.get_text() for text in figure.findobj(Text)}
    assert {"compute", "between"} == said & set(STREAMS)
    with pytest.raises(CommschedError, match=r"lanes need a height of .*in; draw fewer"):
        timeline.draw([training()], tmp_path / "t.pdf", style=Style(height=0.9))
    with pytest.raises(CommschedError, match="no lane 'nvlink' in the timeline; it has compute"):
        timeline.draw([training()], tmp_path / "t.pdf", style=Style(lanes=("nvlink",)))


def test_bars_tell_method_and_bytes_where_they_fit(figure_of):
    note = {"b2": {"method": "ring+fp16", "tensors": ["w"], "numel": 3}}
    t = training(buckets=3)
    header = header_from_data("predicted", {"net": "resnet50", "launches": note})
    figure, _ = figure_of([replace(t, header=header)])
    said = [text.get_text() for text in figure.findobj(Text)]
    assert any(text.startswith("b2: ring+fp16, ") and text.endswith("MB") for text in said)
    assert "b1/between/exchange" in said


def test_the_title_tells_the_drawn_step_from_the_median(tmp_path):
    t = training(buckets=3)
    t.start[t.step > 2] += 1e-3  # step 2 is longer
    t.end[t.step > 2] += 1e-3
    timeline.draw([t], tmp_path / "t.svg", step=2)
    text = (tmp_path / "t.svg").read_text()
    steps = measure.iteration_seconds(t) * 1e3
    assert f"step 2 ({steps[2]:.2f} ms predicted)" in text
    assert f"iteration {np.median(steps[1:3]):.2f} ms predicted" in text
    assert steps[2] > steps[1] + 0.9


def test_of_many_ranks_the_telling_ones_are_drawn_and_named_so(tmp_path):
    t = training(ranks=20, buckets=3, slower=0.1)
    slow = (t.rank == 13) & measure.computes(t)
    t.end[slow] += 1e-4  # a straggler; the small overlaps this makes are drawn, too
    timeline.draw([t], tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert "8 of 20 ranks (first, median and slowest)" in text
    assert "rank 13" in text
    assert "rank 0" in text


def test_of_ranks_that_are_alike_one_is_drawn(tmp_path):
    t = training(ranks=20, buckets=3)
    shown = view.view(t, 1)
    assert view.ranks_to_draw(shown, None) == {0: "first of 20 alike"}
    timeline.draw([t], tmp_path / "t.svg")
    assert "1 of 20 ranks (all are alike)" in (tmp_path / "t.svg").read_text()
    t.end[(t.rank == 13) & (t.step == 1) & measure.computes(t)] += 1e-4
    assert view.ranks_to_draw(view.view(t, 1), None) == {0: "first of 19 alike", 13: ""}


def test_nobody_is_called_slow_where_all_compute_equally_long(tmp_path):
    t = training(ranks=20, buckets=3)
    t.end[~measure.computes(t)] += 1e-4 * t.rank[~measure.computes(t)]
    chosen = view.ranks_to_draw(view.view(t, 1), None)
    assert {"slowest", "latest"} & set(chosen.values()) == {"latest"}
    assert chosen[19] == "latest"


def test_the_ranks_that_a_file_lacks_are_counted(tmp_path):
    t = replace(training(ranks=20, buckets=3), ranks=1024)
    timeline.draw([t], tmp_path / "t.svg")
    said = "1 of 1,024 ranks (all are alike), 20 of them in the file"
    assert said in (tmp_path / "t.svg").read_text()
    assert page_data([t], None, None)["held"] == 20


def test_chosen_ranks_are_drawn(both, tmp_path):
    timeline.draw(both, tmp_path / "t.svg", step=2, ranks=[3, 1])
    text = (tmp_path / "t.svg").read_text()
    assert "2 of 4 ranks, plan 3fa9c1d2e4b5, step 2" in text
    assert "rank 1" in text
    assert "rank 2" not in text


def test_a_step_is_shown_until_the_next_one_has_begun_everywhere():
    spans = [
        Span(0, "compute", "forward/a", 0, 1.0, 2.0, 0.0, 0),
        Span(0, "inside", "b/exchange", 0, 2.0, 5.0, 0.5, 8),
        Span(0, "compute", "forward/a", 1, 3.0, 6.0, 0.0, 0),
    ]
    shown = view.view(Timeline.of(spans, header=Predicted(), plan_hash=HASH, ranks=1), 0)
    assert shown.length == 2.0
    assert [(s.step, s.start, s.end) for s in shown.spans] == [(0, 0, 1), (0, 1, 2), (1, 2, 2)]
    assert [(a, b) for _, a, b in zip(*shown.exposed, strict=True)] == [(1.0, 2.0)]


@pytest.mark.parametrize(
    ("name", "stream", "wanted"),
    [
        ("forward/conv1", "compute", colours.FORWARD),
        ("backward/apply", "compute", colours.BACKWARD),
        ("b3/apply", "compute", colours.APPLY),
        ("b3/encode", "encode", colours.CODEC),
        ("loss", "compute", colours.OTHER),
        ("forward/send", "inside", colours.EXCHANGE),
    ],
)
def test_operations_have_the_colour_of_their_kind(name, stream, wanted):
    assert colours.look(name, stream) is wanted


def test_what_cannot_be_drawn_is_said(both, tmp_path):
    with pytest.raises(
        CommschedError, match=r"cannot draw '.gif' files; use .png, .svg, .pdf or .html"
    ):
        timeline.draw(both, tmp_path / "t.gif")
    with pytest.raises(CommschedError, match="step 9 is not in the timeline; it has steps 0 to 3"):
        timeline.draw(both, tmp_path / "t.png", step=9)
    with pytest.raises(CommschedError, match="rank 4 has no spans in step"):
        timeline.draw(both, tmp_path / "t.png", ranks=[4])
    with pytest.raises(CommschedError, match="no spans"):
        timeline.draw([both[0].select(both[0].rank > 9)], tmp_path / "t.png")
    assert not list(tmp_path.iterdir())


def test_odd_names_are_drawn_as_they_are(tmp_path):
    spans = [Span(0, "compute", r"forward/$x^{<&", 0, 0.0, 1.0, 0.0, 0)]
    t = Timeline.of(spans, header=RunHeader(), plan_hash="", ranks=1)
    timeline.draw([t], tmp_path / "t.svg")
    assert "forward/$x^{&lt;&amp;" in (tmp_path / "t.svg").read_text()


def test_the_command_draws(both, tmp_path, capsys):
    paths = [tmp_path / "predicted.json", tmp_path / "measured.json"]
    for path, t in zip(paths, both, strict=True):
        write(path, t)
    out = tmp_path / "t.svg"
    assert main(["plot", *map(str, paths), "-o", str(out), "--ranks", "0,2", "--step", "1"]) == 0
    assert "2 of 4 ranks" in out.read_text()
    assert main(["plot", str(paths[0]), "-o", str(tmp_path / "t.gif")]) == 2
    assert main(["plot", str(paths[0]), "-o", str(out), "--ranks", "0-1,3"]) == 0
    assert "3 of 4 ranks" in out.read_text()
    for wrong in ("2-0", "0-", "0-1-2", "x"):
        assert main(["plot", str(paths[0]), "-o", str(out), "--ranks", wrong]) == 2
        assert f"whole numbers such as 0,3 or 0-3, got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drawn", "words", "sentence"),
    [
        ("t.json", ["-o", "t.png", "--x", "step"], "--x changes nothing in a picture of timelines"),
        ("t.json", ["-o", "t.png", "--break-even"], "--break-even changes nothing"),
        ("t.json", ["-o", "t.png", "--where", "a=b"], "which takes --step, --ranks, --lanes, "),
        ("t.json", ["-o", "t.html", "--width", "5in"], "a page of timelines, which takes --step"),
        ("t.json", ["-o", "t.html", "--lanes", "compute"], "--lanes changes nothing in a page"),
        ("t.csv", ["-o", "t.png", "--step", "0"], "--step changes nothing in a picture of a table"),
        ("t.csv", ["-o", "t.png", "--lanes", "compute"], "--lanes changes nothing"),
        ("t.csv", ["-o", "t.png", "--value", "step", "--break-even"], "of a table with --value"),
        ("t.csv", ["-o", "t.png", "--pareto", "memory", "--x", "ranks"], "--x changes nothing"),
        ("t.jsonl", ["-o", "t.png", "--ranks", "0"], "--ranks changes nothing in a picture of tr"),
        ("t.jsonl", ["-o", "t.png", "--y", "loss"], "which takes --x, --width, --height"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(
    drawn, words, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    header = LogHeader(net="mlp:4:1", strategy="sync", plan="0" * 64, ranks=2, made={})
    TrainingLog(Path("t.jsonl"), header).close()
    assert main(["plot", drawn, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_title_has_any_letters_and_the_file_stays_whole(tmp_path, capfd):
    one, log = tmp_path / "t.json", tmp_path / "t.jsonl"
    write(one, training(buckets=2))
    header = LogHeader(net="mlp:4:1", strategy="sync", plan="0" * 64, ranks=2, made={})
    TrainingLog(log, header).close()
    for drawn in (one, log):
        for out in (tmp_path / "t.svg", tmp_path / "t.png"):
            assert main(["plot", str(drawn), "-o", str(out), "--title", "a\x01 \u65e5"]) == 0
        ElementTree.parse(tmp_path / "t.svg")
        assert "a\\u0001 \u65e5" in (tmp_path / "t.svg").read_text()
    assert capfd.readouterr().err == ""
    words = ["--width", "1in", "--height", "1in"]
    assert main(["plot", str(log), "-o", str(out), *words]) == 2
    assert "the texts leave no room in 1 x 1 in; give more --width" in capfd.readouterr().err
    tables = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert main(["plot", *tables, "-o", str(out)]) == 2
    assert f"one table is drawn at a time, not {tables[1]}, too" in capfd.readouterr().err
