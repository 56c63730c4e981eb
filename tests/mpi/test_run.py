"""A whole run of a plan with every kind of method: its results, bytes, decisions and files."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from commsched.coding.registry import CODECS
from commsched.cost.price import library_bytes
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.method import Choice
from commsched.exchange.registry import METHODS, find_method, legal_methods, phases_of
from commsched.net.graph import Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.run import session
from commsched.run.engine.measurement import common_start
from commsched.run.engine.worker import Emulated, draw_launch
from commsched.run.job.clock import Clock
from commsched.run.session import RunOptions
from commsched.timeline import file as timeline_file
from commsched.timeline.parts import find
from tests.support import ranks, sample_methods
from tests.support.gradients import bits
from tests.support.overlaps import overlaps
from tests.support.ranks import WORLD, together
from tests.support.small_plans import graph, machine, plan

SHAPE = (2, WORLD.size // 2) if WORLD.size % 2 == 0 else (1, WORLD.size)
STEPS = 3


class Slow(sample_methods.PushPull):
    """Takes its time to write the result."""

    name = "slow"

    def phases(self, spec, group):
        push, pull = super().phases(spec, group)

        def give(state, packets):
            time.sleep(0.4)
            pull.give(state, packets)

        return push, replace(pull, give=give)


for method in (*sample_methods.ALL, Slow()):
    if method.name not in METHODS:  # they are there after the first groups of a job
        METHODS.add(method.name)(method)
FED = ("ring+fp16:feedback", "tree+fp8:e5m2:feedback", "all-gather+terngrad:feedback")


def each_once(names):
    """Names with a part that none before has: 4 ranks that are all run all pairs, others these."""
    seen, found = set(), []
    for name in names:
        parts = name.split("+")
        if not seen.issuperset(parts):
            found.append(name)
            seen.update(parts)
    return found


EVERY = [m.name for m in legal_methods(machine(*SHAPE).everyone) if m.name != "slow"]
EVERY = [*(each_once(EVERY) if ranks.in_groups or WORLD.size != 4 else EVERY), *FED]


class Kept(Emulated):
    """Keeps every result, where a run would drop it."""

    results: list[np.ndarray]

    def __init__(self, made, rank, module=np):
        super().__init__(made, rank, module)
        Kept.results = []

    def result(self, step, launch, values):
        self.results.append(values.copy())


def net(count: int) -> Net:
    """Layers of 40 to 300 elements, every other one sparse."""
    made = graph([40 + 37 * i % 260 for i in range(count)], seconds=1e-4)
    law = Sparsity(law="uniform", density=0.1)

    def thin(tensor: Tensor) -> Tensor:
        return replace(tensor, sparsity=law)

    layers = [
        replace(layer, tensors=tuple(map(thin, layer.tensors))) if i % 2 else layer
        for i, layer in enumerate(made.layers)
    ]
    return replace(made, layers=tuple(layers))


def everything(**changes):
    """One bucket for every method that there is."""
    return plan(net(len(EVERY)), machine(*SHAPE), EVERY, **changes)


def execute(made, folder, monkeypatch, name="m.json", **options):
    """Run a plan; the timeline on rank 0, and this rank's results in the order of their ends."""
    monkeypatch.setattr(session, "Emulated", Kept)
    timeline = session.run(made, WORLD, folder / name, RunOptions(**{"steps": STEPS} | options))
    return timeline, Kept.results


def reference(made):
    """What one process computes for every step and launch: this rank's results, and decisions.

    Each rank computes some of the launches, for all.
    """
    found, decisions = [{} for _ in range(WORLD.size)], {}
    for number, launch in enumerate(made.launches):
        if number % WORLD.size != WORLD.rank:
            continue
        grads = [draw_launch(made, rank, launch) for rank in range(WORLD.size)]
        states = fresh_states([np.zeros_like(g) for g in grads], made.seed, launch.name)
        divisor = np.float32(WORLD.size if made.mean else 1)
        for step in range(STEPS):
            for state, gradient in zip(states, grads, strict=True):
                state["gradient"][:] = gradient
                state["step"] = step
            if launch.method.startswith("native"):
                results = [np.sum(grads, axis=0)] * WORLD.size
            else:
                method, group = find_method(launch.method), made.group(launch)
                for phase, value in run_method(method, made.spec(launch), group, states).items():
                    decisions[f"{step}/{launch.name}/{phase}/decide"] = value
                results = [state["result"] for state in states]
            for own, result in zip(found, results, strict=True):
                own[step, number] = result / divisor
    parts = WORLD.alltoall([(own, decisions) for own in found])
    whole = {key: value for own, _ in parts for key, value in own.items()}
    return [whole[key] for key in sorted(whole)], {
        k: v for _, part in parts for k, v in part.items()
    }


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("mean", "params"),
    [  # methods for nodes of several ranks need an even number; by night groups of all sizes
        pytest.param(False, {}, marks=pytest.mark.groups(1, 4)),
        pytest.param(True, {"encode": "communication"}, marks=pytest.mark.groups(3)),
    ],
)
def test_a_run_gives_the_bits_and_decisions_of_one_process(folder, monkeypatch, mean, params):
    made = everything(seed=3, mean=mean, params=params)
    timeline, results = execute(made, folder, monkeypatch, verify=True)
    wanted, decisions = reference(made)
    problems = []
    if len(results) != STEPS * len(made.launches):
        problems.append(f"{len(results)} results")
    for number, (got, want) in enumerate(zip(results, wanted, strict=False)):
        step, index = divmod(number, len(made.launches))
        name = made.launches[index].method
        if name.startswith("native"):
            same = np.allclose(got, want, rtol=1e-5, atol=1e-5)
        else:
            same = np.array_equal(bits(got), bits(want))
        if not same:
            problems.append(f"step {step}, {name}: other bits than in one process")
    if timeline is not None and timeline.decisions != decisions:
        problems.append(f"decisions {timeline.decisions}, not {decisions}")
    together(problems)


@pytest.fixture(scope="module")
def once(shared):
    """A run for several tests: its plan, file and timeline, and this rank's results."""
    made = everything(seed=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        timeline, results = execute(made, shared, monkeypatch)
    return made, shared / "m.json", timeline, results


@pytest.mark.groups(3)
def test_equal_seeds_give_equal_bits_run_after_run(once, folder, monkeypatch):
    runs = [once[-1]]
    for seed, steps in ((1, STEPS), (2, 1)):
        runs.append(execute(everything(seed=seed), folder, monkeypatch, steps=steps)[1])
    first, again, other = ([result.tobytes() for result in results] for results in runs)
    together(["equal seeds, other bits"] * (first != again))
    together(["other seeds, equal bits"] * (first[: len(other)] == other))


@pytest.mark.by_day(1)
@pytest.mark.groups(1, 4)  # methods for nodes of several ranks need an even number
def test_a_timeline_has_every_operation_once_with_the_bytes_of_its_plan(once):
    made, path, timeline, _ = once
    problems = []
    if timeline is not None:
        rows = [(s.rank, s.step, s.name) for s in timeline]
        if len(set(rows)) != len(rows):
            problems.append("an operation stands twice")
        if timeline_file.read(path).plan_hash != made.hash:
            problems.append("the file is of another plan")
        sent = {(s.rank, s.step, s.name): s.nbytes for s in timeline}
        for index, launch in enumerate(made.launches):
            for name, expected in fixed_bytes(made, index).items():
                problems += [
                    f"{launch.method}: rank {rank} sent {sent[rank, step, name]} B, not {want}"
                    for rank, want in enumerate(expected)
                    for step in range(STEPS)
                    if sent[rank, step, name] != want
                ]
        if find(path):
            problems.append("parts are left")
    together(problems)


def fixed_bytes(made, index):
    """Bytes that every rank sends in each exchange whose packets have a fixed size."""
    found = {}
    for phase in phases_of(made, index):
        if isinstance(phase, Choice) or not phase.payload.codec.fixed:
            continue
        stem = made.launches[index].name + (f"/{phase.name}" if phase.name else "")
        sent = np.zeros(WORLD.size)
        if phase.schedule.library:
            sent += np.round(library_bytes(phase, made.machine, made.machine.everyone))
        else:
            for rnd in phase.schedule.rounds():
                np.add.at(sent, rnd.src, phase.payload.wire(rnd.first, rnd.stop, rnd.merged))
        found[f"{stem}/exchange"] = sent.tolist()
    return found


@pytest.mark.groups(3)
def test_lists_take_the_bytes_of_their_non_zeros(folder, monkeypatch):
    made = plan(net(4), machine(*SHAPE), ["all-gather-direct+coo"])
    timeline, _ = execute(made, folder, monkeypatch)
    problems = []
    for launch in made.launches:
        for rank in range(WORLD.size):
            packet = CODECS["coo"].encode(draw_launch(made, rank, launch), {})
            want = packet.nbytes * (WORLD.size - 1)
            name = f"{launch.name}/exchange"
            for span in timeline or []:
                if (span.rank, span.name) == (rank, name) and span.nbytes != want:
                    problems.append(f"{name}: rank {rank} sent {span.nbytes} B, not {want}")
    together(problems)


@pytest.mark.by_day(0)
@pytest.mark.groups(2)
def test_a_run_that_gets_on_slowly_does_not_run_out_of_time(folder, monkeypatch):
    made = plan(graph([50] * 6, seconds=1e-4), machine(*SHAPE), ["slow"])
    # The first layer's bucket is the last to come: the next step waits 2.4 s for it.
    _, results = execute(made, folder, monkeypatch, timeout=1.5, steps=2)
    assert len(results) == 12


def test_parts_of_a_crashed_run_with_more_ranks_are_cleared_away(folder, monkeypatch):
    if WORLD.rank == 0:
        (folder / "m.json.rank11.jsonl").write_text("left by a crash")
    WORLD.Barrier()
    execute(plan(net(1), machine(*SHAPE), ["tree+dense"]), folder, monkeypatch)
    WORLD.Barrier()
    together(["parts are left"] * bool(find(folder / "m.json")))


def test_one_bucket_of_one_element_is_enough(folder, monkeypatch):
    made = plan(graph([1]), machine(*SHAPE), ["ring+dense"])
    timeline, results = execute(made, folder, monkeypatch, verify=True)
    want = np.mean([draw_launch(made, r, made.launches[0]) for r in range(WORLD.size)], axis=0)
    together(["not the mean"] * any(not np.allclose(r, want, rtol=1e-5) for r in results))
    assert (timeline is not None) == (WORLD.rank == 0)


@pytest.mark.groups(3)
def test_the_time_of_verifying_is_no_part_of_the_timeline(folder, monkeypatch):
    class Thorough(session.Verifier):
        def check(self, step):
            super().check(step)
            time.sleep(0.2)

    monkeypatch.setattr(session, "Verifier", Thorough)
    made = plan(graph([50] * 3, seconds=1e-4), machine(*SHAPE), ["ring+dense"])
    begun = time.perf_counter()
    timeline, _ = execute(made, folder, monkeypatch, verify=True)
    elapsed = time.perf_counter() - begun
    if timeline is not None:
        problem = f"{timeline.end.max()} s of {elapsed} s"
        together([problem] * bool(timeline.end.max() > elapsed - 0.2 * STEPS))
        together([str(pair) for pair in overlaps(timeline)])
    else:
        together([])
        together([])


@pytest.mark.skipif(WORLD.size == 1, reason="one rank cannot differ from itself")
@pytest.mark.parametrize("more", [0, 1])
def test_ranks_with_different_plans_are_refused_on_all_ranks(folder, more):
    mine = machine(1, WORLD.size + more * (WORLD.rank == WORLD.size - 1))
    made = plan(net(2), mine, ["ring+dense"], seed=WORLD.rank)
    with pytest.raises(CommschedError, match="the ranks differ in the plan: rank"):
        session.run(made, WORLD, folder / "m.json", RunOptions())
    WORLD.Barrier()
    together(["something was written"] * bool(list(folder.iterdir())))


def test_a_plan_for_other_ranks_is_refused_on_all_ranks(folder):
    made = plan(net(2), machine(1, WORLD.size + 1), ["ring+dense"])
    message = f"the plan is for {WORLD.size + 1} ranks, but {WORLD.size} were started; use 'mpiexec"
    with pytest.raises(CommschedError, match=message):
        session.run(made, WORLD, folder / "m.json", RunOptions())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ring+zip"}, "no codec named 'zip'"),
        ({"method": "all-to-all+dense"}, "does not leave the sum on every rank"),
        ({"method": "unheard-of"}, "no method named 'unheard-of'"),
        ({"group": (0,)}, r"exchanges among 1 of \d ranks; strategy 'sync'"),
        ({"payload": "activation"}, "exchanges activations"),
        ({"every": 2}, "exchanges every 2 steps"),
        ({"lag": 3}, "merged 3 steps later"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_written(folder, change, message):
    if change == {"group": (0,)} and WORLD.size == 1:
        pytest.skip("the first rank is everyone")
    made = plan(net(2), machine(*SHAPE), ["ring+dense"])
    broken = replace(made, launches=(replace(made.launches[0], **change), *made.launches[1:]))
    with pytest.raises(CommschedError, match=message):
        session.run(broken, WORLD, folder / "m.json", RunOptions())
    WORLD.Barrier()
    together(["something was written"] * bool(list(folder.iterdir())))


def test_a_run_frees_the_communicators_that_it_makes(folder):
    made, freed = [], []

    def copied(comm, key, value):
        made.append(value)
        return value

    key = MPI.Comm.Create_keyval(copied, lambda comm, key, value: freed.append(value))
    comm = WORLD.Dup()  # copies of it have the attribute, too
    comm.Set_attr(key, 0)
    for turn in range(2):  # the first one makes what a job keeps
        made.clear(), freed.clear()
        a_plan = plan(net(2), machine(*SHAPE), ["ring+dense"] * 2)
        session.run(a_plan, comm, folder / f"{turn}.json", RunOptions(steps=2, verify=True))
    problem = [f"{len(made)} made, {len(freed)} freed"] * (len(made) != len(freed))
    comm.Free()
    together(problem)


@pytest.mark.groups(4)
def test_laws_of_gradients_are_asked_before_the_steps_not_within(folder, monkeypatch):
    step, asked = [0], []

    def noting(known):
        def noted(*args):
            if step[0] > 1 and threading.current_thread() is not threading.main_thread():
                asked.append(known.__name__)
            return known(*args)

        return noted

    for law in (Sparsity.after, Sparsity.nonzeros, Sparsity.log_empty):
        monkeypatch.setattr(Sparsity, law.__name__, noting(law))
    options = {"steps": STEPS + 1, "progress": lambda done: step.__setitem__(0, done + 1)}
    execute(everything(), folder, monkeypatch, **options)
    assert not asked


def test_a_run_begins_at_one_moment_on_clocks_that_differ():
    clock = Clock(offset=3.0 * WORLD.rank, uncertainty=0.0)
    moments = WORLD.allgather(common_start(WORLD, clock) + clock.offset)
    assert max(moments) - min(moments) < 1e-9  # s
