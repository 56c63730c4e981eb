"""One exam on 8 real ranks for every method, legal pair and number of ranks from 1 to 8."""

import json
import re
import sys

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states
from commsched.exchange.pair import Pair, route
from commsched.exchange.registry import find_method, legal_methods
from commsched.run.wire.host import CUT
from commsched.schedule.registry import COLLECTIVES
from tests.support import exam, sampling
from tests.support.jobs import Job
from tests.test_codecs_lossy import MORE

SECONDS = 280  # about 40 are needed on two cores
# Beside the listed ones: codecs, compositions, and methods of several phases.
FED = tuple(f"{name}:feedback" for name in ("fp16", "fp8:e5m2", "terngrad", "quant:1", "quant:2"))
UNLISTED = (*MORE, *FED, "powersgd:3", "ok-topk:0.1", "gtopk:0.1", "hitopk:0.1", "zen:hierarchical")
TITLES = [
    exam.title(shape, case.name)
    for shape in exam.SHAPES
    for case in (*exam.cases(shape, UNLISTED), *exam.in_pieces())
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What was wrong in each case, a sentence each; from one job of 8 ranks."""
    folder, which = tmp_path_factory.mktemp("exam"), "--whole" if sampling.whole else "--some"
    with Job(8, [sys.executable, "-m", "tests.support.exam", which, str(folder), *UNLISTED]) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    return {title: wrong for path in folder.iterdir() for title, wrong in read(path)}


def read(path):
    return json.loads(path.read_text()).items()


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("shape", exam.SHAPES, ids=str)
def test_ranks_get_the_sum_and_the_bits_and_bytes_of_lockstep(shape, report):
    titles = [title for title in TITLES if title.startswith(exam.title(shape, ""))]
    assert titles
    assert {title: report[title] for title in titles if report[title]} == {}


def test_every_number_of_ranks_is_examined_and_nothing_is_examined_twice():
    assert {sum(shape) for shape in exam.SHAPES} == set(range(1, 9))
    assert len(set(TITLES)) == len(TITLES)


@pytest.mark.parametrize("shape", exam.SHAPES, ids=str)
def test_what_is_not_examined_says_why_it_is_no_method(shape):
    members = exam.group_of(shape)
    legal = {method.name for method in legal_methods(members, more=UNLISTED)}
    for collective in COLLECTIVES:
        if collective == "torus" and not route(collective, members).apt:
            continue
        for codec in (*CODECS, *MORE, *FED):
            if f"{collective}+{CODECS[codec].name}" in legal:
                assert Pair(collective, codec).phases(exam.spec(10), members)
                continue
            with pytest.raises(
                CommschedError, match=r"nodes|leave the sum|equal sums|float32|cannot add"
            ):
                Pair(collective, codec).phases(exam.spec(10), members)


def sent_and_found(case, members):
    """What all ranks find in lockstep: results, (ranks, n) of each step, and bytes."""
    results, sent, states = [], [], []
    for step, _, grads in exam.inputs(case.series, members.size):
        if step == 0:
            states = fresh_states([each.copy() for each in grads], 5, "b0")
        for state, values in zip(states, grads, strict=True):
            state["gradient"][:], state["step"] = values, step
        sent.append(exam.reference(case.method, members, states))
        results.append(np.array([state["result"] for state in states]))
    return results, np.transpose(sent)


@pytest.mark.parametrize("name", ["ring+coo", "all-gather+topk:0.1/fp16", "gtopk:0.1"])
def test_a_wrong_bit_and_a_wrong_byte_are_seen(name):
    case, members = exam.Case(name, find_method(name), exam.SERIES, CUT), exam.group_of((2, 1))
    results, sent = sent_and_found(case, members)
    assert exam.graded(case, members, results, sent) == []
    sent[1, 1] += 1
    results[2].view(np.uint32)[:, 7] ^= 1
    results[5].view(np.uint32)[2, 8] ^= 1
    wrong = exam.graded(case, members, results, sent)
    assert any(re.search(r"step 1, empty: .* B were sent instead of", text) for text in wrong)
    for step in ("step 2, one", "step 5, full"):
        assert f"300 elements, {step}: other bits than in lockstep" in wrong
    assert "300 elements, step 5, full: other bits on other ranks" in wrong
    assert ("300 elements, step 2, one: not the sum" in wrong) == case.method.lossless
