"""Training with local losses: each chunk of a net has its own loss, and batches stream through."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.machine.model import Machine
from commsched.net.graph import Layer, Net
from commsched.plan.model import Param, Plan
from commsched.program import stages as pipeline
from commsched.program.draft import Draft, received
from commsched.program.flushed_pipeline import (
    StageWork,
    draft_stages,
    memory,
    one_forward_one_backward,
)
from commsched.program.launch_ops import OPTIMIZER, update_traffic
from commsched.program.message_coding import coding_of
from commsched.program.model import After, Hop, Turn
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage, compute, finish, head_name, turn_end
from commsched.program.strategy import Memory


def _pieces(net: Net, machine: Machine, before: Mapping[str, Param]) -> tuple[Param, ...]:
    """List numbers of microbatches: of a step with a batch for each rank, and a batch in one."""
    return tuple(dict.fromkeys((before["stages"], 1)))


def _variants(net: Net, machine: Machine, before: Mapping[str, Param]) -> tuple[Param, ...]:
    """List the variants that a number of microbatches allows."""
    whole = ("overlapping",) if before["microbatches"] == 1 else ()
    return ("greedy", "chunked", *whole)


def _chunks(net: Net, machine: Machine, before: Mapping[str, Param]) -> tuple[Param, ...]:
    """List numbers of chunks: two, if the variant has chunks."""
    return (min(2, int(before["stages"])),) if before["variant"] == "chunked" else (0,)


class Local(pipeline.PipelineStrategy):
    """Blocks with an auxiliary head and a loss of their own; gradients stay inside a block.

    greedy: every stage is a block. chunked: J chunks of stages, each trained by back-propagation
    from the loss at its end; J = 1 is back-propagation with a flush. overlapping: the loss of a
    stage also reaches back through the stage before it, window 2, stride 1.
    Batches stream: a stage begins the next batch as soon as it has updated, so the pipeline fills
    once and never drains. With K equal stages, m microbatches and free updates, a batch takes

        greedy       m max_k(f + b + a)
        chunked      (m + R - 1)(f + b), R = K / J stages in a chunk, heads left out
        overlapping  max over k of f_k + t + (f_{k+1} + a_{k+1} + b_{k+1}) + t + b_k,
                     and of the stages' own f_k + a_k + 2 b_k;  m = 1

    f, b, a [s] = forward, backward, and the auxiliary head's both; t [s] = a message from port to
    port. With overlapping, stage k's second backward needs the gradient that stage k + 1 computes
    from the activations of stage k, so the period includes the round trip. A circuit through
    several stages takes one period per stage, so no longer circuit is slower.
    `head`: size and work of an auxiliary head as a share of the net's last layer.
    Source: Laskin et al., "Parallel training of deep networks with local updates", 2020.
    Holds if an update ends before the next batch begins: then parameters equal those of sequential
    training.
    """

    name = "local"
    fewest, codec, flushes = False, "", False
    parameters: Mapping[str, Parameter] = {
        **pipeline.PARAMETERS,
        "stages": pipeline.PARAMETERS["stages"]._replace(learns=True),
        "microbatches": Parameter(1, pipeline.PARAMETERS["microbatches"].allowed, _pieces, False),
        "variant": Parameter("greedy", ("greedy", "overlapping", "chunked"), _variants),
        "chunks": Parameter(0, Range(0, pipeline.MOST), _chunks),
        "head": Parameter(1.0, Range(0.0, 1e6)),
        "optimizer": OPTIMIZER,
    }

    def settings(self, plan: Plan) -> dict[str, Param]:
        settings = super().settings(plan)
        chunked = settings["variant"] == "chunked"
        if bool(settings["chunks"]) != chunked:
            allowed = "a number of chunks" if chunked else "none: every stage is a block"
            raise CommschedError(
                f"strategy 'local': variant {settings['variant']!r} has {allowed}; got chunks ="
                f" {settings['chunks']}"
            )
        if settings["variant"] == "overlapping" and settings["microbatches"] != 1:
            raise CommschedError(
                "strategy 'local': variant 'overlapping' takes a batch in one piece; microbatches"
                f" must be 1, got {settings['microbatches']}"
            )
        return settings

    def prepare(
        self, net: Net, machine: Machine, settings: Mapping[str, Param]
    ) -> tuple[Net, dict[str, Param]]:
        share = float(settings["head"])
        plan = Plan(net=net, machine=machine, launches=(), params=settings)
        chunks = chunks_of(pipeline.grid(plan, settings), settings)
        if not share:
            return net, dict(settings)
        trunk = pipeline.trunk_of(net)
        heads = [_head(trunk[-1], chunk[-1], share) for chunk in chunks[:-1]]
        return replace(net, layers=(*trunk, *heads)), dict(settings)

    def draft(self, plan: Plan) -> Draft:
        settings, stages, m = self.cut(plan)
        work = StageWork(update_traffic(settings["optimizer"]))
        draft = Draft([stage.ranks for stage in stages], coding_of(plan))
        launches = pipeline.check(plan, stages)
        if settings["variant"] == "overlapping":
            lasts = [_overlapping(draft, stages, stage) for stage in stages]
        else:
            for chunk in chunks_of(stages, settings):
                draft_stages(draft, chunk, one_forward_one_backward, m, work)
            lasts = [turn_end(Turn(True, m - 1), stage.number) for stage in stages]
        for stage, mine, last in zip(stages, launches, lasts, strict=True):
            finish(draft, plan, stage, mine, last, work.traffic)
        return draft

    def memory(self, plan: Plan) -> Memory:
        settings, stages, m = self.cut(plan)
        kept = {
            stage.number: min(m, len(chunk) - place)
            for chunk in chunks_of(stages, settings)
            for place, stage in enumerate(chunk)
        }
        return memory(
            plan,
            stages,
            str(settings["optimizer"]),
            lambda held: sum(kept[stage.number] * stage.activation for stage in held),
        )


def chunks_of(stages: Sequence[Stage], settings: Mapping[str, Param]) -> list[Sequence[Stage]]:
    """Return the stages of each chunk."""
    chunked = settings["variant"] == "chunked"
    count, size = int(settings["chunks"]) if chunked else len(stages), len(stages)
    if not 1 <= count <= size:
        raise CommschedError(
            f"strategy 'local': {count} chunks cannot be made of {size} stages; allowed: 1 to"
            f" {size}"
        )
    return [stages[size * j // count : size * (j + 1) // count] for j in range(count)]


def _head(last: Layer, stage: Stage, share: float) -> Layer:
    """Return the auxiliary head behind a stage; it is like the net's last layer."""
    name = head_name(stage.number)
    scaled = last.scaled(share, share)
    tensors = tuple(replace(t, name=f"{name}.{t.name}") for t in scaled.tensors)
    return replace(scaled, name=name, after=(stage.layers[-1].name,), tensors=tensors)


def _overlapping(draft: Draft, stages: Sequence[Stage], stage: Stage) -> After:
    """Append a stage's forward, its own backward, and the backward of the next stage's loss."""
    number = stage.number
    after = [received(Hop(number - 1, number, 0))] if number else []
    done = compute(draft, stage, Turn(False), stage.forward, after)
    if not stage.last:
        draft.message(Hop(number, number + 1, 0), stage.output, done)
    done = compute(draft, stage, Turn(True), stage.backward + stage.head, [done])
    if number:
        draft.message(Hop(number, number - 1, 0), stages[number - 1].output, done)
    if stage.last:
        return done
    after = [received(Hop(number + 1, number, 0))]
    return compute(draft, stage, Turn(True, again=True), stage.backward, after)


STRATEGIES.add("local")(Local())
