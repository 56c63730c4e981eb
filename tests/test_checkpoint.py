"""Checkpoints: a killed training goes on to the same bits, and no wrong file is taken."""

import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.run.job.lock import locked
from commsched.run.job.store import Store
from commsched.train.packing import packed, unpacked
from tests.test_train import started, train

RANKS = 2
SHORT = ("--net", "words:8:300", "--batch", "24", "--rate", "0.05", "--optimizer", "adam")
SHORT += ("--method", "all-gather+topk:0.05:reused")  # what feedback keeps is kept, too


def kept_step(folder: Path) -> int:
    """The next step of the checkpoint there; -1 where there is none."""
    try:
        return int(json.loads((folder / "manifest.json").read_text())["step"])
    except FileNotFoundError:
        return -1


def test_checkpoints_and_scores_do_not_change_a_bit(tmp_path):
    plain = train(RANKS, *SHORT, "--steps", "12")
    folder = ("--checkpoint", str(tmp_path), "--every", "1", "--evaluate", "2")
    assert train(RANKS, *SHORT, "--steps", "12", *folder)["parameters"] == plain["parameters"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "manifest.json",
        "plan.json",
        "step11",
        "step12",
    ]
    more = train(RANKS, *SHORT, "--steps", "20", *folder, "--resume")
    assert more["parameters"] == train(RANKS, *SHORT, "--steps", "20")["parameters"]
    assert train(RANKS, *SHORT, "--steps", "20", *folder, "--resume")["loss"] is None


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    train(RANKS, *SHORT, "--steps", "4", "--checkpoint", str(folder))
    return folder


@pytest.fixture
def copy(kept, tmp_path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "copy"))


def refused(ranks: int, folder: Path, *more: str) -> str:
    """What is said of a checkpoint that is not taken."""
    words = (*SHORT, "--steps", "9", "--checkpoint", str(folder), *more)
    done = started(ranks, *words)
    assert done.status == 2, done.output
    said = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    assert len(said) == 1, done.output
    return said[0].removeprefix("commsched: ")


def test_a_folder_with_a_checkpoint_is_not_overwritten(copy):
    assert "holds a checkpoint of step 4; add --resume" in refused(RANKS, copy)


def test_a_folder_without_one_is_refused(tmp_path):
    assert "cannot be read" in refused(RANKS, tmp_path, "--resume")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--seed", "5"), "was made with --seed 0, now it is 5"),
        (("--batch", "12"), "was made with --batch 24, now it is 12"),
        (("--net", "words:8:301"), "the plan is for net 'words:8:300', not for 'words:8:301'"),
        (("--method", "tree+dense"), "reused, now it is tree+dense"),
        (("--precision", "fp16"), "was made with --precision fp32, now it is fp16"),
        (("--bucket", "1MB"), "was planned without --bucket, now it is 1000000B; leave it out"),
        (("--machine", "summit"), "was planned without --machine, now it is summit; leave it out"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(copy, more, message):
    assert message in refused(RANKS, copy, "--resume", *more)


def test_options_of_the_plan_may_be_left_out_to_go_on_but_not_changed(tmp_path):
    words = (*SHORT, "--checkpoint", str(tmp_path))
    asked = ("--param", "overlap=backward")
    train(RANKS, *words, *asked, "--steps", "1")
    train(RANKS, *words, "--resume", "--steps", "2")
    changed = ("--param", "overlap=both")
    said = "was planned with --param overlap=backward, now it is overlap=both; leave it out"
    assert said in refused(RANKS, tmp_path, "--resume", *changed)
    assert train(RANKS, *words, *asked, "--resume", "--steps", "3")["steps"] == 3
    for path in (tmp_path / "manifest.json", tmp_path / "step3" / "manifest.json"):
        manifest = json.loads(path.read_text())
        assert manifest.pop("planning") == {"--method": SHORT[-1], "--param": "overlap=backward"}
        path.write_text(json.dumps(manifest))  # as 0.1 wrote it
    train(RANKS, *words, *changed, "--resume", "--steps", "4")


def test_a_checkpoint_of_another_plan_is_refused(copy, tmp_path):
    made = plan_file.read(copy / "plan.json")
    other = replace(made, seed=made.seed + 1)
    plan_file.write(tmp_path / "other.json", other)
    words = (*SHORT[: SHORT.index("--method")], "--plan", str(tmp_path / "other.json"))
    words += ("--steps", "9", "--checkpoint", str(copy), "--resume")
    done = started(RANKS, *words)
    assert done.status == 2, done.output
    assert f"belongs to plan {made.hash[:8]}" in done.output


def test_a_training_of_any_strategy_goes_on_without_its_plan(tmp_path):
    words = ("--net", "mlp:8:2", "--batch", "24", "--checkpoint", str(tmp_path))
    train(RANKS, *words, "--strategy", "zero1", "--steps", "1")
    more = train(RANKS, *words, "--resume", "--steps", "2")
    assert (more["strategy"], more["steps"]) == ("zero1", 2)


def test_a_training_that_would_end_before_its_checkpoint_is_refused(copy):
    words = (*SHORT, "--checkpoint", str(copy), "--resume")
    done = started(RANKS, *words, "--steps", "3")
    assert done.status == 2, done.output
    said = "commsched: --steps must be at least 4, the step of the checkpoint, got 3\n"
    assert done.output == said
    assert train(RANKS, *words, "--steps", "4")["steps"] == 4


def test_a_checkpoint_of_other_ranks_is_refused(copy):
    assert "for 2 ranks, but 1 were started" in refused(1, copy, "--resume")


@pytest.mark.parametrize("how", ["torn", "changed", "missing", "foreign"])
def test_a_rank_file_that_is_not_the_one_written_is_refused(copy, how):
    path = copy / "step4" / "rank1.npz"
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
        assert f"rank 1: {path}: cannot be read" in refused(RANKS, copy, "--resume")
        return
    other = copy / "step4" / "rank0.npz"
    wrong = {"torn": content[:-9], "changed": b"x" + content[1:], "foreign": other.read_bytes()}
    path.write_bytes(wrong[how])
    assert f"{path}: the file was changed" in refused(RANKS, copy, "--resume")


@pytest.mark.parametrize("content", ["", "{", '{"format": "commsched-checkpoint/2"}', "[]"])
def test_a_manifest_that_is_none_is_refused(copy, content):
    for path in (copy / "manifest.json", copy / "step4" / "manifest.json"):
        path.write_text(content)
    assert "manifest.json: " in refused(RANKS, copy, "--resume")


@pytest.mark.by_day(1)
@pytest.mark.parametrize("torn", ["step4/rank1.npz", "step4/rank0.npz", "manifest.json"])
def test_a_torn_checkpoint_falls_back_to_the_last_whole_one(tmp_path, torn):
    words = (*SHORT, "--checkpoint", str(tmp_path), "--every", "2")
    whole = train(RANKS, *words, "--steps", "4")
    path = tmp_path / torn
    path.write_bytes(path.read_bytes()[:-9])
    done = started(RANKS, *words, "--steps", "4", "--resume", "--json")
    assert done.status == 0, done.output
    (said,) = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    step = 4 if torn == "manifest.json" else 2  # each checkpoint has a manifest of its own, too
    assert f"{path}: " in said
    assert said.endswith(f"; going on from the checkpoint of step {step}")
    assert whole["parameters"] in done.output
    assert kept_step(tmp_path) == 4


@pytest.mark.by_day(0)
def test_a_folder_of_a_training_that_goes_on_is_refused_with_its_holder(copy):
    with locked(copy, "this test"):
        holder = f"process {os.getpid()} on host {socket.gethostname()}, since "
        want = f"rank 0: {copy} is in use by another job: {holder}"
        assert refused(RANKS, copy, "--resume").startswith(want)
    assert train(RANKS, *SHORT, "--steps", "4", "--checkpoint", str(copy), "--resume")


def saved(folder: Path, *steps: int) -> Store:
    """The store of a job of one rank that has saved checkpoints of these steps."""
    store = Store(folder, MPI.COMM_SELF, "bin", {})
    store.begin()
    for step in steps:
        store.save(step, b"x", {})
    return store


def test_saving_removes_no_folder_of_the_user(tmp_path):
    own = {"steps", "step", "step-sizes", "step1.old", "stepwise1"}
    for name in own:
        (tmp_path / name).mkdir()
    saved(tmp_path, 1, 2, 3)
    assert {path.name for path in tmp_path.glob("step*")} == {*own, "step2", "step3"}


def test_a_step_that_is_saved_again_leaves_the_checkpoint_before(tmp_path):
    store = saved(tmp_path, 1, 5, 9, 9)
    assert {path.name for path in tmp_path.glob("step*")} == {"step5", "step9"}
    resumed = Store(tmp_path, MPI.COMM_SELF, "bin", {})
    resumed.last(lambda content, where: content)
    for again in (resumed, store):
        again.save(9, b"x", {})
        assert {path.name for path in tmp_path.glob("step*")} == {"step5", "step9"}
    store.save(12, b"x", {})
    assert {path.name for path in tmp_path.glob("step*")} == {"step9", "step12"}


def test_a_checkpoint_that_one_rank_cannot_write_is_said_once_with_its_rank(tmp_path):
    path = tmp_path / "step5" / "rank1.npz"
    path.mkdir(parents=True)
    assert refused(RANKS, tmp_path, "--every", "5") == (
        f"rank 1: {path}: cannot be written: Is a directory"
    )


NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
ARRAYS = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(
    lambda values: np.array(values, np.float32)
)
LEAVES = NUMBERS | ARRAYS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    """Equal values of equal types."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.by_day(0)
@given(values=st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_packed_comes_back(values):
    assert same(values, unpacked(packed(values), "x"))


@given(content=st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_pack(content):
    with pytest.raises(CommschedError, match=r"^x: not a checkpoint of commsched"):
        unpacked(content, "x")


@given(data=st.data())
def test_a_torn_or_changed_pack_is_refused_or_has_the_same_structure(data):
    """Bytes between the arrays may change without a trace here; the manifest's digest sees it."""
    content = bytearray(packed({"a": np.arange(4.0), "b": (1, 2.0)}))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = unpacked(bytes(content), "x")
    except CommschedError:
        return
    assert isinstance(found, dict)


def test_pickled_objects_are_refused(tmp_path):
    import io

    file = io.BytesIO()
    np.savez(file, tree=np.array([{"a": 1}], object))
    with pytest.raises(CommschedError):
        unpacked(file.getvalue(), "x")
