"""Recorded gradients: what the planner measures on them, and what is no such file."""

import io
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.exchange import recorded_gradients as recorded
from commsched.exchange.error import SAMPLE, STEPS, _drawn, error
from commsched.exchange.recorded_gradients import COUNT, RUNS, Recorded
from commsched.exchange.registry import find_method
from commsched.net import file
from commsched.net.decay import fit_decay, magnitudes
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.limits.error_budget import verdict
from commsched.planner.make_plan import make_plan
from commsched.planner.replan import replanned
from commsched.planner.request import Request
from commsched.train.packing import unpacked
from tests.support import sampling
from tests.support.small_plans import machine

LARGE = (128, 256)  # SAMPLE elements
TOPK = "all-gather+topk:0.01"


def net(*names: str) -> Net:
    layers = [
        Layer(name=name, forward=1e-5, backward=2e-5, tensors=(Tensor(name=name, shape=LARGE),))
        for name in names
    ]
    return Net(name="net", layers=tuple(layers), source="test")


def peaked(count: int = COUNT) -> np.ndarray:
    """Gradients with all but nothing outside of 200 elements, others each time."""
    rng = np.random.default_rng(0)
    values = 1e-4 * rng.standard_normal((count, SAMPLE))
    for one in values:
        one[rng.choice(SAMPLE, 200, replace=False)] += 1
    return values.astype(np.float32)


@pytest.mark.parametrize("name", ["ring+fp16", TOPK, "ok-topk:0.05", "powersgd:2", "ring+dense"])
def test_recorded_gradients_that_were_drawn_have_the_error_of_drawn_ones(name):
    tensor, method = Tensor(name="w", shape=LARGE), find_method(name)
    drawn = [_drawn(Sparsity(), SAMPLE, step, rank) for step in range(STEPS) for rank in range(4)]
    found = Recorded({"w": np.stack(drawn)}, "here")
    assert found.error(method, tensor) == error(method, tensor.sparsity, tensor.numel)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("name", ["ring+fp16", TOPK, "all-gather+topk:0.1", "all-gather+quant:8"])
@pytest.mark.parametrize("law", ["standard_normal", "laplace", "standard_t"])
def test_gradients_drawn_with_the_decay_of_recorded_ones_have_about_their_error(name, law):
    method, tensor = find_method(name), Tensor(name="w", shape=LARGE)
    draw = getattr(np.random.default_rng(0), law)
    shape = {"size": (COUNT, SAMPLE)}
    found = draw(3, **shape) if law == "standard_t" else draw(**shape)
    found = found.astype(np.float32)
    decay = float(np.median([fit_decay(each) for each in found]))
    drawn = error(method, tensor.sparsity, tensor.numel, decay)
    # One number tells the largest hundredth; the smallest elements of a normal law fall faster.
    assert drawn == pytest.approx(Recorded({"w": found}, "here").error(method, tensor), rel=0.3)


def test_the_decay_of_what_falls_like_a_power_is_its_exponent():
    rng = np.random.default_rng(0)
    for exponent in (0.2, 0.5, 1.0):
        values = rng.permutation(magnitudes(SAMPLE, exponent))
        assert fit_decay(values) == pytest.approx(exponent, abs=0.02)  # sizes count as powers of 2
    assert np.isnan(fit_decay(np.ones(10)))
    assert np.isnan(fit_decay(np.full(SAMPLE, np.inf)))


def test_the_last_gradients_count_and_whole_steps_of_them():
    tensor, method = Tensor(name="w", shape=LARGE), find_method(TOPK)
    values = peaked(COUNT + 2)
    want = Recorded({"w": values[-COUNT:]}, "").error(method, tensor)
    assert Recorded({"w": values}, "").error(method, tensor) == want
    want = Recorded({"w": values[2:6]}, "").error(method, tensor)
    assert Recorded({"w": values[:6]}, "").error(method, tensor) == want


def test_top_k_is_planned_where_the_recorded_gradients_are_peaks_and_nowhere_else():
    fields = {"net": net("flat", "peaks"), "machine": machine(2, 2), "lossy": ("topk:0.01",)}
    flat = np.random.default_rng(1).standard_normal((COUNT, SAMPLE)).astype(np.float32)
    known = Recorded({"flat": flat, "peaks": peaked()}, "g.npz")
    request = Request(**fields, max_error=0.1, bucket=1.0)
    assert {e.method.endswith("+topk:0.01") for e in make_plan(request).launches} == {False}
    request = Request(**fields, max_error=0.1, bucket=1.0, recorded=known)
    lossy = {
        launch.pieces[0].tensor
        for launch in make_plan(request).launches
        if launch.method.endswith("+topk:0.01")
    }
    assert lossy == {"peaks"}


def test_the_explanation_says_where_an_error_comes_from():
    fields = {"net": net("a", "b"), "machine": machine(2, 2), "lossy": ("topk:0.01",)}
    (line,) = verdict(Request(**fields, max_error=0.1))
    assert line == (
        "error per step on a, at most 0.1, on drawn gradients: topk:0.01 0.96 (too much)"
    )
    known = Recorded({"a": peaked()}, "g.npz")
    first, second = verdict(Request(**fields, max_error=0.1, recorded=known))
    assert first.startswith(
        "error per step on a, at most 0.1, on 32 recorded gradients of g.npz: topk:0.01 0.0"
    )
    assert second == "1 of 2 tensors were not recorded: on drawn gradients"
    force = {"b": TOPK}
    with pytest.raises(CommschedError, match=r"error of 0\.96 in a step on drawn gradients, but"):
        make_plan(Request(**fields, max_error=0.1, recorded=known, force=force))
    force = {"a": TOPK}
    with pytest.raises(CommschedError, match=r"in a step on 32 recorded gradients of g\.npz, but"):
        make_plan(Request(**fields, max_error=1e-9, recorded=known, force=force))


@settings(deadline=None, max_examples=sampling.examples(30))
@given(numel=st.integers(1, 5 * SAMPLE))
def test_a_sample_is_runs_of_neighbours_from_the_first_element_to_the_last(numel):
    taken = recorded.sample(np.arange(numel, dtype=np.float32))
    assert len(taken) == min(numel, SAMPLE)
    assert (taken[0], taken[-1]) == (0, numel - 1)
    assert (np.diff(taken) > 0).all()
    assert np.count_nonzero(np.diff(taken) > 1) <= RUNS - 1


def test_whole_gradients_and_samples_of_them_are_read_alike(tmp_path):
    graph = Net(
        name="net",
        layers=(
            Layer(name="l", tensors=(Tensor(name="a/b", shape=(300, 200)),)),
            Layer(name="m", tensors=(Tensor(name="file", shape=(7,)),)),
        ),
    )
    rng = np.random.default_rng(0)
    whole = {"a/b": rng.standard_normal((5, 300, 200)), "file": rng.standard_normal((9, 7))}
    few = {n: np.stack([recorded.sample(v) for v in values]) for n, values in whole.items()}
    first, second = tmp_path / "whole.npz", tmp_path / "samples.npz"
    recorded.write(first, whole)
    recorded.write(second, {name: values.astype(np.float32) for name, values in few.items()})
    with np.load(first, allow_pickle=False) as numpys:
        assert sorted(numpys) == sorted(whole)
    np.savez_compressed(tmp_path / "packed.npz", **{"a/b": whole["a/b"]})
    packed = recorded.read(tmp_path / "packed.npz", graph).gradients
    for found in (recorded.read(first, graph), recorded.read(second, graph)):
        assert found.gradients.keys() == few.keys()
        for name, values in few.items():
            assert found.gradients[name].dtype == np.float32
            np.testing.assert_array_equal(found.gradients[name], values.astype(np.float32))
    np.testing.assert_array_equal(packed["a/b"], few["a/b"].astype(np.float32))


def npz(*members: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that stand twice
        for name, data in members:
            # Of no time of its own: contents are names of tests, alike in all workers.
            archive.writestr(zipfile.ZipInfo(name), data)
    return content.getvalue()


def array(values: object, **options: bool) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(values), **options)
    return content.getvalue()


GOOD = array(np.ones((4, 20), np.float32))
INFINITE = np.ones((4, 20)) * 1e300


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive", "not an npz file, which numpy.savez writes"),
        (GOOD, "not an npz file, which numpy.savez writes"),
        (npz(), "no gradients; tensor name -> (count, ...) is expected"),
        (npz(("w.npy", GOOD))[:-30], "not an npz file"),
        (npz(("w.npy", GOOD[:-30])), "not an npz file of numbers"),
        (npz(("w.npy", b"text")), "not an npz file of numbers"),
        (npz(("w.npy", array([{}], allow_pickle=True))), "not an npz file of numbers"),
        (npz(("w.npy", GOOD), ("w.npy", GOOD)), "array 'w' is in the file twice"),
        (npz(("w.txt", GOOD)), "'w.txt' is not an array; only arrays are allowed"),
        (npz(("v.npy", GOOD)), "no tensor named 'v' in net 'net'; nearest: 'w'"),
        (npz(("w.npy", array(np.ones((4, 20), np.int32)))), "gradients are floats, got int32"),
        (npz(("w.npy", array(np.ones((3, 20))))), "at least 4 gradients, got shape [3, 20]"),
        (npz(("w.npy", array(np.ones(20)))), "at least 4 gradients, got shape [20]"),
        (npz(("w.npy", array(np.float32(1)))), "at least 4 gradients, got shape []"),
        (npz(("w.npy", array(np.ones((4, 21))))), "has 20 elements, got 21 in shape [4, 21]"),
        (npz(("w.npy", array(INFINITE))), "only finite float32 numbers are allowed"),
        (npz(("w.npy", array(np.full((4, 20), np.nan)))), "only finite float32 numbers"),
    ],
)
def test_what_are_no_gradients_of_the_net_is_refused_in_one_sentence(tmp_path, content, reason):
    graph = Net(name="net", layers=(Layer(name="l", tensors=(Tensor(name="w", shape=(4, 5)),)),))
    path = tmp_path / "g.npz"
    path.write_bytes(content)
    with pytest.raises(CommschedError) as refusal:
        recorded.read(path, graph)
    said = str(refusal.value)
    assert said.startswith(f"{path}: ")
    assert reason in said
    assert said.count("not an npz file") == reason.count("not an npz file")
    assert "\n" not in said


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 20), }"


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace("(4, 20)", "(4, 1000000000000000)"),  # more than a memory holds
        HEADER.replace("(4, 20)", "(8, True)"),
        HEADER.replace("(4, 20)", "(12345678901234567890, 20)"),
        HEADER.replace("(4, 20)", "(-4, 20)"),
        HEADER.replace(" }", " }}"),
        HEADER.replace("{'descr", "{{{'descr"),
        HEADER.replace("'<f4'", "'<f3'"),
        HEADER.replace("'<f4'", "'|O'"),
        HEADER.replace("'<f4'", "[('a', '<f4')]"),
        HEADER.replace("(4, 20)", "(4, 20) if 1 else 2"),
        HEADER + " " * 20_000,
        "",
    ],
)
def test_a_header_that_numpy_does_not_write_is_refused(tmp_path, header):
    graph = Net(name="net", layers=(Layer(name="l", tensors=(Tensor(name="w", shape=(20,)),)),))
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    path = tmp_path / "g.npz"
    path.write_bytes(npz(("w.npy", start + bytes(320))))
    with pytest.raises(CommschedError, match=r"g\.npz: not an npz file of numbers"):
        recorded.read(path, graph)
    with pytest.raises(CommschedError, match=r"not a checkpoint of commsched, or a broken one"):
        unpacked(path.read_bytes(), "it")


def test_an_archive_that_inflates_is_refused_by_what_it_says(tmp_path):
    graph = Net(name="net", layers=(Layer(name="l", tensors=(Tensor(name="w", shape=(20,)),)),))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", array(np.zeros((10**5, 20), np.float32)))
    path = tmp_path / "g.npz"
    path.write_bytes(content.getvalue())
    assert recorded.read(path, graph).gradients["w"].shape == (recorded.COUNT, 20)
    size = (8 * 10**6 + 128).to_bytes(4, "little")
    path.write_bytes(content.getvalue().replace(size, (3 * 10**9).to_bytes(4, "little")))
    with pytest.raises(CommschedError, match="holds 3000000000 B, at most 2147483648 are allowed"):
        recorded.read(path, graph)
    path.write_bytes(content.getvalue().replace(size, (400).to_bytes(4, "little")))
    with pytest.raises(CommschedError, match="not an npz file"):
        recorded.read(path, graph)
    with pytest.raises(CommschedError, match="not a checkpoint"):  # those are written as they are
        unpacked(content.getvalue(), "it")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(CommschedError, match=r"none\.npz: cannot be read: No such file"):
        recorded.read(tmp_path / "none.npz", net("w"))
    with pytest.raises(CommschedError, match="cannot be read: Is a directory"):
        recorded.read(tmp_path, net("w"))


def test_the_command_line_reads_recorded_gradients_under_a_budget_only(tmp_path, capsys):
    file.write(tmp_path / "net.json", net("a"))
    recorded.write(tmp_path / "g.npz", {"a": peaked()})
    words = ["plan", str(tmp_path / "net.json"), "--machine", "localhost", "--allow", "topk:0.01"]
    words += ["--gradients", str(tmp_path / "g.npz"), "-o", str(tmp_path / "plan.json")]
    assert main(words) == 2
    assert "--gradients needs --max-error" in capsys.readouterr().err
    assert main([*words, "--max-error", "0.1"]) == 0
    assert "on 32 recorded gradients of " in capsys.readouterr().out
    assert main([*words, "--max-error", "0.1", "--json"]) == 0
    assert "on 32 recorded gradients of " in capsys.readouterr().out


def test_planning_anew_keeps_what_recorded_gradients_allowed():
    known = Recorded({"w": peaked()}, "g.npz")
    request = Request(
        net=net("w"), machine=machine(2, 2), lossy=("topk:0.01",), max_error=0.1, recorded=known
    )
    made = make_plan(request)
    (method,) = {launch.method for launch in made.launches}
    assert method.endswith("+topk:0.01")
    slower = replace(made.machine, between=replace(made.machine.between, per_byte=1e-6))
    again = replanned(made, slower, frozenset())
    assert {launch.method for launch in again.launches} == {method}
    assert again.max_error == 0.1
    assert again.machine == slower
