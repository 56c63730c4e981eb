"""Data to train on: their shapes, what is held out, and the order in which they are learnt."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.net.sparsity import Sparsity
from commsched.train.data.bigrams import PAIRS, frequencies, least_loss, partners
from commsched.train.forward_backward import score
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, check_batch, epoch_of, part_of
from commsched.train.samples import FOLDS


@pytest.mark.parametrize("name", ["digits", "bytes:32", "words:500:3"])
def test_the_folds_part_the_samples(name):
    sizes, held = set(), 0
    for fold in range(FOLDS):
        data = DATA[name](fold)
        sizes.add(len(data.train) + len(data.held_out))
        held += len(data.held_out)
        assert len(data.held_out) == pytest.approx(len(data.train) / (FOLDS - 1), abs=FOLDS)
    assert sizes == {held}


def test_digits_are_pixels_in_0_to_1_and_a_class():
    data = DATA["digits"](0)
    assert len(data.train) + len(data.held_out) == 1797
    for part in data:
        assert (part.inputs.shape, part.inputs.dtype) == ((len(part), 64), np.float32)
        assert (part.inputs.min(), part.inputs.max()) == (0, 1)
        assert sorted(set(part.targets.tolist())) == list(range(10))


def test_photographs_are_patches_of_grey_pixels_and_their_levels():
    data = DATA["photographs"](0)
    assert len(data.train) + len(data.held_out) == 2 * (427 // 8) * (640 // 8)
    for part in data:
        assert (part.inputs.shape, part.inputs.dtype) == ((len(part), 64), np.float32)
        assert (part.targets.min(), part.targets.max()) == (0, 15)
        exact = np.round(part.inputs.astype(float) * 255)
        np.testing.assert_array_equal(part.targets, exact // 16)
    # a pixel is like its right and its lower neighbour, and less like the far corner
    patches = data.train.inputs.reshape(-1, 8, 8)
    right, below, far = (
        abs(patches[:, 0, 0] - patches[:, i, j]).mean() for i, j in ((0, 1), (1, 0), (7, 7))
    )
    assert max(right, below) < far


def test_bigrams_follow_their_law():
    vocabulary, data = 50, DATA["bigrams:50"](0)
    assert len(data.train) == PAIRS * 4 // 5
    assert len(data.held_out) == 2000
    p, partner = frequencies(vocabulary), partners(vocabulary)
    first, second = data.train.inputs, data.train.targets
    counts = np.bincount(first, minlength=vocabulary)
    assert np.all(abs(counts / len(first) - p) < 5 * np.sqrt(p / len(first)))
    law = 0.5 * np.eye(vocabulary)[partner] + 0.5 * p  # of the second word: a row for each first
    np.testing.assert_allclose(law.sum(axis=1), 1.0)
    surprise = -np.log(law[first, second])
    error = surprise.std() / len(surprise) ** 0.5
    assert abs(surprise.mean() - least_loss(vocabulary)) < 4 * error
    entropies = -(law * np.log(law)).sum(axis=1)
    assert least_loss(vocabulary) == pytest.approx(float(p @ entropies), rel=1e-12)


@pytest.mark.parametrize(("words", "ranks"), [(8, 1), (32, 1), (32, 4), (32, 16)])
def test_the_densification_of_bigrams_is_known(words, ranks):
    """The rows that ranks of some words each hit together, against law `zipf` of exponent 1."""
    rows = 300
    hits = 1 - (1 - frequencies(rows)) ** words
    law = Sparsity(law="zipf", density=float(hits.mean()), rows=rows, exponent=1.0)
    first = DATA["bigrams:300"](0).train.inputs
    batches = first[: len(first) // (words * ranks) * words * ranks].reshape(-1, words * ranks)
    hit = np.array([len(np.unique(batch)) for batch in batches]) / rows
    error = hit.std() / len(hit) ** 0.5
    assert abs(hit.mean() - float(law.after(ranks))) < 4 * error


@pytest.mark.by_day(0)
def test_the_sources_are_10_megabytes_of_which_few_runs_are_scored():
    data = DATA["sources:64"](1)
    assert 64 * len(data.train) > 8e6
    assert len(data.held_out) == len(data.validation().held_out) == 256
    seen = {row.tobytes() for row in data.held_out.inputs}
    assert not seen & {row.tobytes() for row in data.validation().held_out.inputs}


def test_bytes_are_followed_by_the_next_byte():
    part = DATA["bytes:16"](4).train
    assert part.inputs.shape == part.targets.shape == (len(part), 16)
    np.testing.assert_array_equal(part.inputs[:, 1:], part.targets[:, :-1])
    np.testing.assert_array_equal(part.inputs[1:, 0], part.targets[:-1, -1])


def test_words_are_numbered_by_frequency_and_rare_ones_are_0():
    part = DATA["words:100:3"](4).train
    assert part.inputs.shape == (len(part), 3)
    np.testing.assert_array_equal(part.inputs[1:, -1], part.targets[:-1])
    counts = np.bincount(part.targets, minlength=100)
    assert len(counts) == 100
    # By frequency in all folds; in four of five neighbours may stand the other way round.
    assert np.corrcoef(np.argsort(-counts[1:], kind="stable"), np.arange(99))[0, 1] > 0.95


@pytest.mark.parametrize("name", NETS)
def test_every_net_reads_its_data(name):
    net = NETS[name]
    some = DATA[net.data](0).held_out.of(np.arange(4))
    found = score(net, net.start(0), some.inputs, some.targets)
    assert found.guesses == some.targets.size
    assert np.isfinite(found.loss)


@given(
    samples=st.integers(2, 200),
    batch=st.integers(1, 50),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_an_epoch_learns_no_sample_twice_and_leaves_less_than_a_batch(samples, batch, seed, epoch):
    batch = min(batch, samples)
    steps = samples // batch
    found = [batch_of(seed, epoch * steps + k, batch, samples) for k in range(steps)]
    seen = np.concatenate(found)
    assert len(set(seen.tolist())) == len(seen) > samples - batch
    assert all(0 <= number < samples for number in seen)
    assert epoch_of(epoch * steps, batch, samples) == (epoch, 0)


def test_the_order_depends_on_seed_and_epoch_alone():
    first = batch_of(1, 7, 10, 35)
    batch_of(1, 2, 10, 35)
    batch_of(2, 7, 10, 35)
    np.testing.assert_array_equal(batch_of(1, 7, 10, 35), first)
    assert (batch_of(2, 7, 10, 35) != first).any()
    assert (batch_of(1, 4, 10, 35) != batch_of(1, 1, 10, 35)).any()
    np.testing.assert_array_equal(first, [29, 26, 2, 15, 12, 5, 24, 11, 9, 14])


@given(count=st.integers(0, 100), ranks=st.integers(1, 9))
def test_the_ranks_parts_are_the_whole_in_order(count, ranks):
    parts = [np.arange(count)[part_of(count, rank, ranks)] for rank in range(ranks)]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_batch_that_cannot_be_shared_is_refused():
    check_batch(12, 100, 4)
    with pytest.raises(CommschedError, match=r"must be a multiple of 4; nearest: 8$"):
        check_batch(10, 100, 4)
    for wrong in (0, 101):
        with pytest.raises(CommschedError, match=rf"from 1 to the 100 samples, got {wrong}"):
            check_batch(wrong, 100, 1)


@pytest.mark.parametrize("name", ["words:1:3", "words:10", "bytes:0", "bytes:1:2", "images"])
def test_a_wrong_name_is_refused(name):
    with pytest.raises(CommschedError):
        DATA[name]


def test_without_scikit_learn_one_sentence_says_how_to_get_the_digits():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"  # as where it is not installed
        "from commsched.cli.main import main\n"
        "sys.exit(main(['profile', 'mlp', '-o', '/dev/null']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "commsched: the digits come with scikit-learn, which is not installed; pip install"
        " '.[train]' in the folder of commsched's source\n"
    )
