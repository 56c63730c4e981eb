"""A lower bound of a plan's step time, from the plan without its launches."""

from itertools import accumulate, pairwise

from commsched.arrays import Floats
from commsched.net.tensor_cut import gathers, sums
from commsched.plan.model import Plan
from commsched.planner.auto.rows import steps_of
from commsched.planner.frames.zero import gathered
from commsched.program.message_coding import Coded, coding_of
from commsched.program.registry import STRATEGIES
from commsched.program.slowness import fastest
from commsched.program.stages import PipelineStrategy, Stage, dealt, grid
from commsched.simulate.pipelines import message_seconds

BYTES = {"fp16": 2.0, "bf16": 2.0}  # of an element as these codecs send it
ROUNDED = 1.0 - 1e-9  # the simulator adds in another order, which changes a sum by less


def floor(plan: Plan) -> float:
    """Return a lower bound of every simulated step, s; 0 if none is known.

    A rank begins a step after all its compute of the step before. See `pipeline_floor`.
    """
    strategy, machine = STRATEGIES[plan.strategy], plan.machine
    if not isinstance(strategy, PipelineStrategy):
        # With jitter, the launches decide how many steps are drawn.
        return 0.0 if machine.jitter else ROUNDED * strategy.work(plan)
    if not strategy.flushes:
        return ROUNDED * _fastest(plan) * strategy.work(plan)
    return ROUNDED * pipeline_floor(plan)


def pipeline_floor(plan: Plan) -> float:
    """Return a lower bound of each step of a pipeline with a flush, s.

    It is the longest of some chains of operations, from the moment at which the last rank of a
    pipeline begins a step to the same moment of the next step:

        max over k of (w_k + sum over i < k of (b_i + t_i)) + sum over i < K - 1 of (f_i + t_i)

    f_i, b_i [s] = forward and backward of a microbatch in the i-th of K ranks' first stage, with
    the sums of tensor-parallel ranks, see `_sums`; t_i [s] = a message between ranks i and i + 1.
    w_k [s] = the compute that rank k has left in all its stages, of m microbatches: m b, and m f
    for the last rank, since no rank goes backward before the last one goes forward; or, without the
    t_{k-1} that follows, all messages backward from rank k, one after the other through its port.
    Then the last message goes down to the first rank, which updates, and the next step's first
    microbatch goes up to the last rank.
    Holds for stages that are updated once a step, with compute at the least jitter drawn.
    """
    settings = STRATEGIES[plan.strategy].settings(plan)
    stages, m, coding = grid(plan, settings), int(settings["microbatches"]), coding_of(plan)
    roles, fast = dealt(stages), _fastest(plan)
    last = len(roles) - 1

    def message(source: Stage, to: Stage, nbytes: int) -> tuple[float, float]:
        """Return the least seconds from port to port, and in the sender's port, coded or not."""
        found = []
        for coded in {coding.of(nbytes), Coded(nbytes=nbytes)}:
            busy, away = message_seconds(plan.machine, source.ranks, to.ranks, coded.nbytes)
            port: Floats = coded.encode + busy
            found.append((float((port + away).min()) + coded.decode, float(port.min())))
        return min(way for way, _ in found), min(port for _, port in found)

    def turn(stage: Stage, *directions: bool) -> float:
        work = {False: stage.forward, True: stage.backward}
        return sum(fast * work[each] + _sums(plan, stage, each) for each in directions)

    backward = [message(b, a, a.output) for a, b in pairwise(stages)]
    down = [turn(stages[i], True) + backward[i][0] for i in range(last)]
    drain = [0.0, *accumulate(down)]
    found = 0.0
    for k, held in enumerate(roles):
        works = m * sum(turn(stage, *((False, True) if k == last else (True,))) for stage in held)
        sends = m * sum(backward[stage.number - 1][1] for stage in held if stage.number)
        flight = backward[k - 1][0] if k else 0.0
        found = max(found, works + drain[k], sends + drain[k] - flight)
    up = (message(stages[i], stages[i + 1], stages[i].output)[0] for i in range(last))
    return found + sum(turn(stage, False) for stage in stages[:last]) + sum(up)


def _sums(plan: Plan, stage: Stage, backward: bool) -> float:
    """Return a lower bound, s, for T tensor-parallel ranks to sum activations in a stage's turn.

        (T - 1) / T n e G    for each reduce-scatter or all-gather; a sum is one of each

    n = elements; e [B] = the size of one, which is not coded; G [s/B] of the fastest link: the
    ranks send as much on average, one message after the other. 0 where a rank has several links (a
    torus), or where sums were measured.
    """
    machine, width = plan.machine, stage.width
    if width == 1 or machine.native or any(level.torus for level in machine.levels):
        return 0.0
    shared = plan.net.sequence > 1
    once = sum(layer.summed for layer in stage.layers if sums(layer, backward))
    spread = sum(layer.summed * gathers(layer, backward) for layer in stage.layers)
    elements = once + spread if shared else 2 * once
    nbytes = elements * BYTES.get(gathered(plan.net, "auto"), 4.0)
    links = [machine.inside, machine.between, *(level.link for level in machine.levels)]
    return (width - 1) / width * nbytes * min(link.per_byte for link in links)


def _fastest(plan: Plan) -> float:
    """Return the least factor by which jitter scales a rank's compute in the simulated steps."""
    if plan.machine.even:
        return 1.0
    return min(fastest(plan.machine, plan.seed, step) for step in range(steps_of(plan)))
