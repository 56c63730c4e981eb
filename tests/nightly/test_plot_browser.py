"""The HTML page in a real browser: what it draws, tells and finds, and how it is moved."""

import re
import time
from dataclasses import replace
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from commsched.plot import colours
from commsched.timeline.header import header_from_data
from tests.support import browser
from tests.test_plot_html import HOSTILE, many_spans, page_of, training

pytestmark = pytest.mark.skipif(browser.PATH is None, reason=browser.MISSING)


@pytest.fixture
def both():
    return training(), training("measured", stretch=1.25)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A browser; what it opens must not complain."""
    found = browser.Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture
def opened(shown, tmp_path):
    """A function that writes a page of some sides and opens it in the browser."""

    shown.complaints.clear()

    def open_page(*sides, at=""):
        page_of(tmp_path, *sides)
        shown.open(tmp_path / "t.html", at)
        return shown

    yield open_page
    assert shown.complaints == []


def place(b, t, row):
    """Return the pixel of time `t` (ms) in the middle of a row of 18 px from the top."""
    x, y, width = b.ask("[(r => r.x)(R), (r => r.y)(R), (r => r.width)(R)]".replace("R", FRAME))
    low, high = (b.drawn[k] for k in "ab")
    return x + 206 + (t - low) / (high - low) * (width - 206), y + 42 + 8 + 18 * row + 9


FRAME = "(document.querySelector('canvas').getBoundingClientRect())"


def test_a_browser_tells_both_sides_of_an_operation(both, opened):
    b = opened(*both, at="#step=2&focus=fc/exchange&rank=1")
    assert b.text("title") == "tiny on two hosts, 3 ranks"
    assert b.drawn["rows"] == 3 * 2 * 2  # ranks, sides, streams
    assert b.drawn["labels"] > 10
    lines = [line.replace("\N{MINUS SIGN}", "-").split("\t") for line in b.text("tip").split("\n")]
    assert lines == [
        ["fc/exchange"],
        ["communication; rank 1, between, step 2, measured"],
        ["", "predicted", "measured", "difference"],
        ["duration", "20.000 ms", "25.000 ms", "-5.000 ms (-20.0 %)"],
        ["waiting", "0.000 ms", "0.000 ms", "0.000 ms"],
        ["exposed", "0.000 ms", "0.000 ms", "0.000 ms"],
        ["start", "50.000 ms", "62.500 ms", "-12.500 ms"],
        ["bytes", "4.096 kB", "4.096 kB", "0 B"],
    ]
    words = ("forward", "backward", "apply", "communication", "exposed: compute is idle")
    assert set(words) <= set(b.text("legend").split("\n"))


def test_bars_have_the_colours_of_their_kinds_where_their_times_are(both, opened):
    b = opened(*both, at="#step=1")

    def colour(t, row):
        x, y = place(b, t, row)
        left, top = b.ask(f"[{FRAME}.x, {FRAME}.y]")
        b.ask("c = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })")
        b.ask(f"void c.drawImage(document.getElementById('canvas'), {left - x}, {top - y + 7})")
        return "#" + bytes(b.ask("[...c.getImageData(0, 0, 1, 1).data]"))[:3].hex().upper()

    assert colour(5, 0) == colours.FORWARD.fill
    assert colour(75, 0) == colours.BACKWARD.fill
    assert colour(94, 0) == colours.APPLY.fill
    assert colour(55, 1) == colours.EXCHANGE.fill
    assert colour(45, 1) == "#F3F3F3"  # nothing yet


def test_wheel_buttons_keys_and_drag_move_the_view(both, opened):
    b = opened(*both, at="#step=1")

    def view():
        return b.drawn["a"], b.drawn["b"]

    def width():
        return view()[1] - view()[0]

    whole, (x, y) = view(), place(b, 50, 0)
    b.mouse("Wheel", x, y, deltaX=0, deltaY=-300)
    zoomed = width()
    assert zoomed < 0.7 * (whole[1] - whole[0])
    assert place(b, 50, 0)[0] == pytest.approx(x, abs=1)  # what is under the pointer stays
    b.mouse("Pressed", x, y, button="left", buttons=1, clickCount=1)
    b.mouse("Moved", x - 100, y, button="left", buttons=1)
    b.mouse("Released", x - 100, y, button="left", clickCount=1)
    assert place(b, 50, 0)[0] == pytest.approx(x - 100, abs=1)
    assert width() == pytest.approx(zoomed)
    b.press("+")
    assert width() == pytest.approx(0.6 * zoomed)
    b.press("0")
    assert view() == whole
    b.ask("document.getElementById('out').click()")
    b.settle()
    assert width() > whole[1] - whole[0]


def test_hover_and_arrow_keys_tell_operations(both, opened):
    b = opened(*both, at="#step=1")
    b.mouse("Moved", *place(b, 5, 0))
    assert b.text("tip").startswith("forward/fc\nforward; rank 0, compute, step 1, predicted")
    b.mouse("Moved", *place(b, 20, 1))  # nothing is there
    assert b.ask("document.getElementById('tip').hidden")
    for key, start in (
        ("ArrowRight", "forward/fc"),
        ("ArrowRight", "forward/conv"),
        ("ArrowDown", "fc/exchange\ncommunication; rank 0, between, step 1, predicted"),
        ("ArrowDown", "backward/fc\nbackward; rank 0, compute, step 1, measured"),
    ):
        b.press(key)
        assert b.text("tip").startswith(start)
        assert b.text("said").startswith(start.split("\n")[0])  # for who listens
    b.press("Escape")
    assert b.ask("document.getElementById('tip').hidden")


def test_search_folding_steps_and_address_work(both, opened):
    b = opened(*both, at="#step=1")
    b.press("/", *"conv/exch")
    assert b.text("found") == "1 operation, 6 spans"
    b.press("Enter")
    assert b.text("tip").startswith("conv/exchange\ncommunication; rank 0, between, step 1")
    b.ask("document.getElementById('canvas').focus()")
    b.press("Escape")
    b.click(20, place(b, 0, 1)[1])
    assert b.ask("document.getElementById('ranks').value") == "1,2"
    assert b.drawn["rows"] == 2 * 2 * 2 + 1  # a folded rank has one row
    b.press("]")
    assert b.ask("document.getElementById('step').value") == "2"
    b.ask("new Promise((done) => setTimeout(done, 600))")
    address = b.ask("location.hash")
    assert re.fullmatch(r"#step=2&ms=[-\d.]+,[-\d.]+&ranks=1,2&find=conv/exch", address)
    before = b.drawn
    opened(*both, at=address)
    assert {k: b.drawn[k] for k in ("rows", "spans", "labels")} == {
        k: before[k] for k in ("rows", "spans", "labels")
    }


def test_a_browser_takes_names_for_text(opened):
    sides = training(names=HOSTILE), training("measured", names=HOSTILE)
    for name in HOSTILE:
        b = opened(*sides, at=f"#focus={quote(name)}/exchange")
        assert b.text("tip").startswith(f"{name}/exchange\ncommunication; rank 0, between")
        assert b.ask("document.querySelectorAll('script').length") == 2
        assert b.ask("document.querySelectorAll('b').length") == 1  # the tip's heading


def test_of_many_spans_and_ranks_only_what_is_in_sight_is_drawn(opened):
    b = opened(many_spans(), at="#step=5&ms=10,20&ranks=0-2,39")
    assert 0 < b.drawn["spans"] <= 4 * 110  # 100 spans of 0.1 ms for each of 4 ranks
    assert b.drawn["rows"] == 9  # 4 ranks of 2 streams, one row for 36 folded ranks
    b.click(20, place(b, 15, 3 * 52 / 18)[1])
    assert b.ask("document.getElementById('ranks').value") == "0-10,39"


def test_a_side_without_the_step_shows_its_median_one(opened):
    b = opened(training(steps=3), training("measured", steps=6, stretch=1.25), at="#step=4")
    assert "step 1 (predicted), step 4 (measured)" in b.text("totals")
    b.mouse("Moved", *place(b, 5, 0))
    lines = [line.split("\t") for line in b.text("tip").split("\n")]
    assert lines[1] == ["forward; rank 0, compute, step 1, predicted"]
    assert lines[3][:3] == ["duration", "20.000 ms", "25.000 ms"]


def test_the_panel_tells_the_plan_and_the_path_is_drawn_in_light_and_dark(opened):
    note = {"method": "ring+fp16", "tensors": ["w", "v"], "numel": 2048, "runner_up": "tree+fp16"}
    header = {"net": "tiny", "launches": {"fc": note}}
    t = replace(training(), header=header_from_data("predicted", header))
    b = opened(t, at="#step=2&focus=fc/exchange&rank=1")
    lines = dict(line.split("\t") for line in b.text("panel").split("\n")[1:])
    assert (lines["method"], lines["codec"], lines["tensors"]) == ("ring+fp16", "fp16", "2: w, v")
    assert lines["runner-up"].startswith("tree+fp16")
    assert b.drawn["critical"] > 0
    b.ask("c = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })")
    drawn = "c.drawImage(document.getElementById('canvas'), 0, 0)"
    corner = f"{drawn}, [...c.getImageData(0, 0, 1, 1).data]"
    assert b.ask(corner)[:3] == [255, 255, 255]
    b.press("t")
    assert max(b.ask(corner)[:3]) < 64
    b.press("c")
    assert b.drawn["critical"] == 0


def test_a_range_is_measured_and_the_view_is_exported(opened, tmp_path, shown):
    b = opened(training(), at="#step=1")
    b.ask("document.getElementById('measure').click()")
    (x, y), (right, _) = place(b, 10, 0), place(b, 30, 0)
    b.mouse("Pressed", x, y, button="left", buttons=1, clickCount=1)
    b.mouse("Moved", right, y, button="left", buttons=1)
    b.mouse("Released", right, y, button="left", clickCount=1)
    assert float(b.text("panel").split(" ")[0]) == pytest.approx(20, abs=0.2)
    assert "compute\tbusy" in b.text("panel")
    b.order("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for kind in ("svg", "png"):
        b.ask(f"document.getElementById('{kind}').click()")
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"timeline.{kind}").exists() for kind in ("svg", "png")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    root = ElementTree.fromstring((tmp_path / "timeline.svg").read_text())
    assert "rank 0" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
