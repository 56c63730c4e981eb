"""The HTML page: it holds the spans and the totals, and nothing foreign."""

import configparser
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commsched as cs
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.plot import html
from commsched.plot.draw import draw
from commsched.plot.view import ranks_to_draw, view
from commsched.timeline import measure
from commsched.timeline.compare import compare
from commsched.timeline.file import write
from commsched.timeline.header import RunHeader, header_from_data
from commsched.timeline.intervals import intervals, union
from commsched.timeline.model import Span, Timeline
from tests.support import sampling

HASH = "3fa9c1d2e4b5a697" * 4
ROOT = Path(__file__).resolve().parent.parent
HOSTILE = (
    "</script><b>bold</b>",
    "<!--<script>",
    '"quoted"\\',
    "b'é界'",
    "@DATA@@SCRIPT@",
    "a&amp;b",
)


def training(kind="predicted", ranks=3, steps=4, stretch=1.0, names=("fc", "conv")):
    """Forward, backward, an exchange of each layer, the last one exposed, then apply."""
    spans = []
    for step in range(steps):
        begin = step * 0.1 * stretch
        for r in range(ranks):

            def lay(stream, name, start, end, nbytes=0, r=r, step=step, begin=begin):
                late = r * 0.001 if stream == "compute" else 0.0
                start, end = begin + start * stretch + late, begin + end * stretch + late
                spans.append(Span(r, stream, name, step, start, end, 0.0, nbytes))

            for n, name in enumerate(names):
                width = 0.04 / len(names)
                lay("compute", f"forward/{name}", n * width, (n + 1) * width)
                lay("compute", f"backward/{name}", 0.04 + n * width, 0.04 + (n + 1) * width)
                lay("between", f"{name}/exchange", 0.05 + n * width, 0.05 + (n + 1) * width, 4096)
            lay("compute", "fc/apply", 0.092, 0.096)
    meta = {"net": "tiny", "machine": "two hosts"}
    header = header_from_data(kind, meta)
    made = Timeline.of(spans, header=header, plan_hash=HASH, ranks=ranks)
    return measure.waiting_filled(made)


@pytest.fixture
def both():
    return training(), training("measured", stretch=1.25)


class Page(HTMLParser):
    """What a page is made of: its elements, their attributes, the text under each id."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br", "link", "img"):
            self.open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            self.text[name] = self.text.get(name, "") + data

    @property
    def data(self):
        return json.loads(self.text["data"])


def page_of(tmp_path, *sides, **options):
    path = tmp_path / "t.html"
    draw(sides, path, **options)
    return Page(path.read_text(encoding="utf-8"))


def spans_in(data, number):
    """Decode the spans of one side: rank, stream, name, step, start, end, waited ns, bytes."""
    side = data["sides"][number]
    columns = [side[k] for k in ("name", "step", "start", "length", "waited", "nbytes")]
    rows, found = zip(*columns, strict=True), []
    lanes = side["lanes"]
    for rank, stream, count in zip(lanes["rank"], lanes["stream"], lanes["spans"], strict=True):
        t = 0
        for _ in range(count):
            name, step, start, length, waited, nbytes = next(rows)
            t += start
            words = data["streams"][stream][0], data["names"][name]
            found.append((rank, *words, step, t, t + length, waited, nbytes))
    assert next(rows, None) is None
    return sorted(found)


def spans_of(t):
    """Return the same of a timeline."""
    return sorted(
        (*s[:4], round(s.start * 1e9), round(s.end * 1e9), round(s.waited * 1e9), s.nbytes)
        for s in t
    )


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
names = st.one_of(st.sampled_from(HOSTILE), words)
rows = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["compute", "encode", "inside", "between"]),
    names,
    st.integers(0, 3),
    st.integers(0, 10**10),
    st.integers(0, 10**9),
)


@settings(max_examples=sampling.examples(60), deadline=None)
@given(st.lists(rows, min_size=1, max_size=20))
def test_the_page_holds_the_spans_whatever_their_names(tmp_path_factory, found):
    spans = [Span(r, s, n, k, a / 1e9, (a + b) / 1e9, b / 4e9, b) for r, s, n, k, a, b in found]
    t = Timeline.of(spans, header=RunHeader(), plan_hash=HASH, ranks=4)
    page = page_of(tmp_path_factory.mktemp("page"), t)
    assert spans_in(page.data, 0) == spans_of(t)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not any(tag == "b" for tag, _ in page.elements)


def test_both_sides_share_their_tables(both, tmp_path):
    renamed = training("measured", names=("other", "conv"))
    for sides in (both, (both[0], renamed)):
        data = page_of(tmp_path, *sides).data
        assert [spans_in(data, n) for n in (0, 1)] == [spans_of(t) for t in sides]
        assert len(set(data["names"])) == len(data["names"])


@given(st.lists(rows, min_size=1, max_size=20))
def test_exposed_is_what_the_measure_says(found):
    spans = [Span(r, s, n, k, a / 1e9, (a + b) / 1e9, 0.0, b) for r, s, n, k, a, b in found]
    t = Timeline.of(spans, header=RunHeader(), plan_hash=HASH, ranks=4)
    lane = t.rank.astype(np.int64) * len(t.streams) + t.stream
    marked = html._exposed(t, lane, len(t.streams))
    by_rank = union(intervals(marked.group // len(t.streams), marked.start, marked.end))
    for a, b in zip(by_rank, union(measure.exposed_intervals(t)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_page_needs_nothing_else(both, tmp_path):
    page = page_of(tmp_path, *both)
    assert not re.search(r"https?://|url\((?!#)|@import", (tmp_path / "t.html").read_text())
    assert not any({"src", "href"} & set(attrs) for _, attrs in page.elements)
    assert [file.name for file in tmp_path.iterdir()] == ["t.html"]


def test_the_page_knows_what_the_plan_says_and_each_step_s_critical_path(tmp_path):
    made = cs.Plan.best("bert-base", cs.Machine("p3.16xlarge", nodes=2), method="ring+fp16")
    predicted = made.simulate(4)
    data = page_of(tmp_path, predicted.timeline()).data
    (side,) = data["sides"]
    launch = made.model.launches[0]
    known = side["launches"][launch.name]
    assert known["method"] == launch.method
    assert known["tensors"] == list(dict.fromkeys(piece.tensor for piece in launch.pieces))
    lanes, at = side["lanes"], 0
    stream, start = [], []
    for k, count in zip(lanes["stream"], lanes["spans"], strict=True):
        stream += [data["streams"][k][0]] * count
        start += np.cumsum(side["start"][at : at + count]).tolist()
        at += count
    begin, sums = side["steps"]["begun"][2], {}
    for i in side["paths"]["2"]:
        inside = start[i] + side["length"][i] - max(start[i], begin)
        sums[stream[i]] = sums.get(stream[i], 0.0) + inside / 1e9
    for name, seconds in predicted.data["critical_path"]["seconds"].items():
        assert sums.get(name, 0.0) == pytest.approx(seconds, abs=2e-3 * predicted.iteration)


def test_totals_are_those_of_compare(both, tmp_path):
    c = compare(*both)
    totals = {k["what"]: k["seconds"] for k in page_of(tmp_path, *both).data["totals"]}
    assert totals["iteration"] == [c.iteration.predicted, c.iteration.measured]
    assert totals["exposed communication"] == [c.exposed.predicted, c.exposed.measured]
    alone = page_of(tmp_path, both[1]).data["totals"]
    assert [k["seconds"] for k in alone] == [[totals[k["what"]][1]] for k in alone]


def test_two_plans_differ_by_a_change_and_not_by_an_error(both, tmp_path):
    other = replace(both[1], plan_hash="0" * 64)
    data = page_of(tmp_path, both[0], other).data
    assert (data["change"], data["plan"]) == (True, "")
    data = page_of(tmp_path, *both).data
    assert (data["change"], data["plan"]) == (False, HASH)


def test_the_same_page_is_the_same_file(both, tmp_path):
    for name in ("a.html", "b.html"):
        draw(both, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_it_opens_at_the_chosen_step_and_unfolds_the_telling_ranks(tmp_path):
    t = training("measured", ranks=20)
    data = page_of(tmp_path, t).data
    assert {int(k): v for k, v in data["open"].items()} == ranks_to_draw(
        view(t, data["step"]), None
    )
    data = page_of(tmp_path, t, step=2, ranks=[3, 11]).data
    assert (data["step"], list(data["open"])) == (2, ["3", "11"])


def test_200_000_spans_are_few_bytes(tmp_path):
    page_of(tmp_path, many_spans())
    assert (tmp_path / "t.html").stat().st_size < 12e6


def many_spans(ranks=40, steps=10, count=500):
    """A timeline of 200,000 spans in two streams, one after another in each."""
    rng, n = np.random.default_rng(0), ranks * steps * count
    start = np.tile(np.arange(steps * count) * 1e-4, ranks) + rng.uniform(0, 2e-5, n)
    return Timeline(
        header=RunHeader(),
        plan_hash=HASH,
        ranks=ranks,
        streams=("compute", "between"),
        names=tuple(f"b{k}/exchange" if k % 2 else f"forward/{k}" for k in range(count)),
        rank=np.repeat(np.arange(ranks, dtype=np.int32), steps * count),
        stream=np.tile(np.arange(2, dtype=np.int32), n // 2),
        name=np.tile(np.arange(count, dtype=np.int32), ranks * steps),
        step=np.tile(np.repeat(np.arange(steps, dtype=np.int32), count), ranks),
        start=start,
        end=start + rng.uniform(1e-5, 7e-5, n),
        waited=np.zeros(n),
        nbytes=rng.integers(0, 10**8, n).astype(np.float64),
    )


def test_what_cannot_be_drawn_is_said(both, tmp_path):
    other = replace(both[1], header=header_from_data("measured", {"net": "huge"}))
    for sides, options, words in (
        (both, {"step": 9}, "step 9 is not in the timeline; it has steps 0 to 3"),
        (both, {"ranks": [7]}, "rank 7 has no spans in step"),
        ([both[0].select(both[0].rank > 9)], {}, "no spans"),
        ([both[0], other], {}, "different nets: tiny and huge"),
    ):
        with pytest.raises(CommschedError, match=words):
            page_of(tmp_path, *sides, **options)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_page_without_matplotlib(both, tmp_path):
    paths = [tmp_path / "predicted.json", tmp_path / "measured.json"]
    for path, t in zip(paths, both, strict=True):
        write(path, t)
    out = tmp_path / "t.html"
    assert main(["plot", *map(str, paths), "-o", str(out), "--ranks", "0,2", "--step", "1"]) == 0
    data = Page(out.read_text()).data
    assert (data["step"], list(data["open"])) == (1, ["0", "2"])
    code = (
        f"import sys; from commsched.cli.main import main; main({['plot', str(paths[0])]} + "
        f"['-o', {str(out)!r}]); assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)


def test_the_page_is_in_the_wheel():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    patterns = settings["options.package_data"]["commsched.plot"].split()
    folder = ROOT / "commsched" / "plot"
    packed = {path.name for pattern in patterns for path in folder.glob(pattern)}
    assert {"timeline.html", *html.SCRIPTS} <= packed
