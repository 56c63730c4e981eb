"""Threads that hear late of what others made ready, coding that varies, ranks that code alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate.cell_times import coding_jitter
from commsched.calibrate.exercise import mean_handover
from commsched.cost.message_work import coding_of_a_rank
from commsched.machine import file as machine_file
from commsched.machine.model import CodecRate
from commsched.net.bucket import BucketSpec
from commsched.net.measured import PROCESSOR, Measured
from commsched.schedule.registry import COLLECTIVES
from commsched.simulate.engine import simulate
from tests.support.exchanges import DEVICE, carry, filled
from tests.support.small_plans import graph, machine, plan
from tests.test_ports import ends

HANDOVER = 2e-4  # s


def late(seed: int = 1, mean: float = HANDOVER, methods: tuple[str, ...] = ("ring+dense",)):
    """Small buckets, far apart, on eight ranks; exchanges take microseconds."""
    on = replace(machine(2, 4), handover=mean)
    return replace(plan(graph([1000] * 6), on, methods), seed=seed)


def computing(share: float):
    """The same, where a share of the hand-over is due to computing on cores, as the net does."""
    made = late()
    net = replace(made.net, measured=Measured(device=PROCESSOR, source="a test"))
    on = replace(made.machine, handover=(1 - share) * HANDOVER, handover_computing=share * HANDOVER)
    return replace(made, net=net, machine=on)


@pytest.mark.parametrize("made", [late(), computing(0.0), computing(0.75)])
def test_an_idle_thread_hears_of_an_exchange_after_an_exponential_time_of_the_given_mean(made):
    found = simulate(made, 60)
    ended = {(p.step, p.op.name): p.end for p in found.placed}
    waits = np.concatenate(
        [
            p.start - ended[p.step, p.op.after[0].name]
            for p in found.placed
            if p.op.name == "b0/decode"  # the first: its stream has nothing else to do
        ]
    )
    assert (waits >= 0).all()
    count = len(waits)
    assert count == 60 * 8
    # Of an exponential law mean and deviation are equal; five standard errors.
    assert abs(waits.mean() / HANDOVER - 1) < 5 / np.sqrt(count)
    assert abs(waits.std() / HANDOVER - 1) < 5 * np.sqrt(2 / count)


def test_a_hand_over_takes_longer_only_while_its_rank_computes():
    """Nothing computes beside the last bucket's exchange, which is ready when all layers are."""
    found = simulate(computing(0.75), 60)
    ended = {(p.step, p.op.name): p.end for p in found.placed}
    decodes = [p for p in found.placed if p.op.name == "b5/decode"]
    waits = np.concatenate([p.start - ended[p.step, "b5/exchange"] for p in decodes])
    assert abs(waits.mean() / (0.25 * HANDOVER) - 1) < 5 / np.sqrt(len(waits))


@given(seed=st.integers(0, 100), mean=st.sampled_from([1e-4, 1e-2]))
def test_hand_overs_only_delay_and_the_seed_repeats_them(seed, mean):
    made, calm = simulate(late(seed, mean), 3).timeline(), simulate(late(seed, 0.0), 3).timeline()
    again = simulate(late(seed, mean), 3).timeline()
    np.testing.assert_array_equal(made.end, again.end)
    assert made.end.max() > calm.end.max()
    assert made.waited.max() > calm.waited.max()


def test_every_operation_of_a_bucket_adds_a_hand_over():
    on = replace(machine(1, 4), handover=HANDOVER)
    calm = simulate(plan(graph([1000]), machine(1, 4), ["ring+dense"]), 1)
    made = simulate(plan(graph([1000]), on, ["ring+dense"]), 1)
    begun = {p.op.name: p.start.max() for p in made.placed}
    quiet = {p.op.name: p.start.max() for p in calm.placed}
    later = [begun[name] - quiet[name] for name in ("b0/encode", "b0/exchange", "b0/decode")]
    assert 0 < later[0] < later[1] < later[2]


def test_coding_varies_by_its_jitter_from_rank_to_rank_and_step_to_step_but_not_in_the_mean():
    on = replace(machine(1, 8), coding_jitter=0.3)
    made = replace(plan(graph([10**6]), on, ["ring+fp16"]), seed=3)
    calm = plan(graph([10**6]), machine(1, 8), ["ring+fp16"])

    def coded(found) -> np.ndarray:
        return np.concatenate([p.end - p.start for p in found.placed if p.op.name == "b0/encode"])

    factor = coded(simulate(made, 60)) / coded(simulate(calm, 60))
    assert abs(np.log(factor).std() / 0.3 - 1) < 5 / np.sqrt(2 * len(factor))
    assert abs(factor.mean() - 1) < 5 * 0.3 / np.sqrt(len(factor))


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_few_that_code_are_as_much_faster_as_the_cores_allow_and_all_are_not(cores):
    slow = CodecRate(encode=0.0, add=1e-9, decode=0.0)
    device = replace(DEVICE, codecs={"dense": slow})
    crowded = filled(1, 4, device=device)
    seldom, share = replace(crowded, cores=cores), cores / 4
    np.testing.assert_array_equal(ends("ring", seldom, 4000, 0.0), ends("ring", crowded, 4000, 0.0))
    none = replace(crowded, device=replace(DEVICE, codecs={"dense": replace(slow, add=0.0)}))
    silent = ends("tree", none, 4000, 0.0).max()
    adding = ends("tree", crowded, 4000, 0.0).max() - silent
    # Two of the four add in the first round, one in the second.
    expected = (max(share, 2 / 4) + max(share, 1 / 4)) / 2
    found = (ends("tree", seldom, 4000, 0.0).max() - silent) / adding
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_rank_codes_its_own_part_of_an_exchange_and_not_what_others_code(cores):
    rate = CodecRate(encode=1e-9, add=2e-9, decode=3e-9)
    on = replace(filled(1, 4, device=replace(DEVICE, codecs={"fp16": rate})), cores=cores)
    tree, spec = COLLECTIVES["tree"](on.everyone), BucketSpec.uniform(4000)
    found = coding_of_a_rank(tree, carry(tree, "fp16", spec), on)
    # Three send up and three sums are added; three send down and three ranks decode.
    whole = 6 * 16000 * rate.encode + 3 * 8000 * rate.add + 3 * 16000 * rate.decode
    assert found == pytest.approx(whole / 4 * min(1.0, cores / 4))


def test_both_are_kept_in_machine_files():
    on = replace(machine(1, 4), handover=HANDOVER, coding_jitter=0.25)
    once = machine_file.from_data(machine_file.to_data(on), "m")
    assert (once.handover, once.coding_jitter) == (HANDOVER, 0.25)


def test_coding_that_all_ranks_share_is_no_jitter():
    rng = np.random.default_rng(0)
    kinds = np.array([1e-3, 1e-2]).reshape(2, 1, 1)
    shared, own = rng.lognormal(0.0, 0.5, (2, 500, 1)), rng.lognormal(0.0, 0.2, (2, 500, 4))
    assert coding_jitter(kinds * shared * own) == pytest.approx(0.2, rel=0.05)
    assert coding_jitter(kinds * shared) == 0.0


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_longest_hand_overs_tell_the_mean_beside_a_few_of_other_work(ranks):
    drawn = np.random.default_rng(3).exponential(HANDOVER, (4000, ranks)).max(axis=1)
    drawn[:40] = 1.0
    assert mean_handover(drawn, ranks) == pytest.approx(HANDOVER, rel=0.06)
    assert mean_handover(-drawn, ranks) == 0.0  # taken up before it was noted as ready
