"""ZeRO: optimiser state, gradients and parameters in shards; `zero3` is also known as FSDP."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from commsched.errors import CommschedError
from commsched.exchange.memory import launch_memory
from commsched.exchange.registry import find_method
from commsched.exchange.sharded import GATHERS, HYBRID, LEVELS, PREFIX, SUMS, find_sharded
from commsched.machine.model import Machine
from commsched.net.graph import Net
from commsched.plan.model import Param, Plan
from commsched.program.launch_ops import (
    OPTIMIZER,
    OPTIMIZERS,
    Rule,
    apply_op,
    check_rules,
    end_of,
    exchange_ops,
    update_traffic,
)
from commsched.program.layer_ops import compute, end_of_layer
from commsched.program.model import After, Kind, Op, Program, Role
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Memory, Strategy
from commsched.program.units import GATHER, REGATHER, LayerUnit, units

MASTER = 4.0  # B of an element's float32 copy, which the optimiser updates
MANY = 2**16


def _ways(net: Net, machine: Machine, before: Mapping[str, Param]) -> tuple[Param, ...]:
    """List where shards may lie: among all ranks, and in each node if all are alike."""
    sizes = {len(members) for members in machine.everyone.members}
    return ("all", "node") if machine.nodes > 1 and len(sizes) == 1 and sizes != {1} else ("all",)


class Zero(Strategy):
    """Shards of the training's state: of the optimiser (1), gradients (2) and parameters (3).

    Rank r owns the r-th of N shards of every unit, which is a run of layers. A step gathers the
    parameters of each unit before its forward, sums gradients into shards as backward makes them
    ready, and updates the owned shards. With Psi elements, a B of a parameter, g B of a gradient,
    K B of optimiser state (of Adam 12 with the float32 copy) the state of a rank is

        zero1: (a + g) Psi + K Psi / N,   zero2: a Psi + (g + K) Psi / N,
        zero3: (a + g + K) Psi / N

    and a rank sends 2 (N - 1) / N times the bytes of all parameters, under `zero3` up to 3
    times: parameters are dropped after forward and gathered again before backward. `prefetch` units
    are gathered ahead of the one that computes, 0: none, so that nothing hides a gather. The last
    (prefetch + 1) // 2 units stay from forward to backward, since the window has room for them.
    At most `buffers` units wait for their sums, and under `zero2` and `zero3` backward waits, too.
    shard "node": each node has all shards (N = ranks per node), gathers stay inside nodes, and sums
    of shards cross them. `gather` is the codec of gathered parameters, auto: their own type; owners
    keep exact values.
    zero3 with float32 parameters needs no copy of them: K is then smaller by 4.
    Source: Rajbhandari, Rasley, Ruwase & He, "ZeRO: memory optimizations toward training trillion
    parameter models", SC 2020; units, prefetch and hybrid sharding: Zhao et al., "PyTorch FSDP:
    experiences on scaling fully sharded data parallel", VLDB 2023; codecs: Wang et al., "ZeRO++:
    extremely efficient collective communication for giant model training", arXiv 2306.10209.
    """

    verifiable = exact = True

    def __init__(self, level: int) -> None:
        self.name, self.level = f"zero{level}", level
        more = {"prefetch": Parameter(1, Range(0, MANY), learns=False)} if level == 3 else {}
        self.parameters: Mapping[str, Parameter] = {
            "shard": Parameter("all", ("all", "node"), _ways, learns=False),
            "gather": Parameter("auto", ("auto", "dense", "bf16", "fp16", "fp8", "quant:8")),
            "buffers": Parameter(2, Range(1, MANY), learns=False),
            **more,
            "optimizer": OPTIMIZER,
        }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        ops = _ops(plan, self.level)
        return Program(step=step, roles=(Role(ranks=plan.machine.everyone.ranks, ops=ops),))

    def memory(self, plan: Plan) -> Memory:
        settings, made = self.settings(plan), units(plan)
        whole = [_whole(plan, unit) for unit in made]
        numel = [float(plan.spec(plan.launches[unit.reduce]).numel) for unit in made]
        shards = _shards(plan)
        share = [-(-count // shards) / count for count in numel]  # of the largest shard
        sharded = sum(a * b for a, b in zip(whole, share, strict=True))
        owned = sum(a * b for a, b in zip(numel, share, strict=True))
        plain = all(tensor.dtype == "float32" for tensor in plan.net.tensors.values())
        state = OPTIMIZERS[str(settings["optimizer"])][0] + MASTER * (self.level < 3 or not plain)
        waits = _window(made, int(settings["buffers"]))
        # Units that are gathered reuse memory, whose size is that of the largest unit.
        travel = min(int(settings["buffers"]), len(made))
        buckets = _most(whole, waits) if self.level >= 2 else 0.0  # gradients not summed yet
        if self.level == 3:
            prefetch = int(settings["prefetch"])
            buckets += _most(whole, _held(made, prefetch))
            travel += min(prefetch + 1, len(made))
        return Memory(
            parameters=sharded if self.level == 3 else float(plan.net.nbytes),
            gradients=sharded if self.level >= 2 else float(plan.net.nbytes),
            optimizer=state * owned,
            activations=sum(layer.activation for layer in plan.net.layers),
            buckets=buckets + 4.0 * max(numel, default=0.0) * travel,
            **_beside(plan, int(settings["buffers"])),
        )


def _whole(plan: Plan, unit: LayerUnit) -> float:
    """Return the bytes of a unit's parameters."""
    return float(sum(t.nbytes for x in plan.net.layers[unit.start : unit.stop] for t in x.tensors))


def _shards(plan: Plan) -> int:
    """Return the number of shards of a bucket."""
    everyone, settings = plan.machine.everyone, STRATEGIES[plan.strategy].settings(plan)
    return everyone.lanes if settings["shard"] == "node" else everyone.size


def _most(sizes: Sequence[float], together: Iterable[Iterable[int]]) -> float:
    """Return the largest sum of sizes that are in memory together."""
    return max((sum(sizes[i] for i in some) for some in together), default=0.0)


def _window(made: Sequence[LayerUnit], width: int) -> list[range]:
    """List the runs of `width` units."""
    return [range(i, min(i + width, len(made))) for i in range(len(made))]


def _held(made: Sequence[LayerUnit], prefetch: int) -> list[set[int]]:
    """List the units that are gathered while each forward, then each backward computes."""
    order = _order(made)
    found = []
    for place in range(len(order)):
        stay = {i for i, u in enumerate(made) if u.regather is None and i <= place}
        stay = {i for i in stay if place <= 2 * len(made) - 1 - i}
        found.append(stay | {i for i, _ in order[place : place + prefetch + 1]})
    return found


def _order(made: Sequence[LayerUnit]) -> list[tuple[int, bool]]:
    """List the units in the order in which they compute, and whether backward."""
    forward = [(i, False) for i in range(len(made))]
    return forward + [(i, True) for i in reversed(range(len(made)))]


def _beside(plan: Plan, buffers: int) -> dict[str, float]:
    """Return the bytes of launches beside their buckets: at most `buffers` units wait at once."""
    memories = [launch_memory(x.method, plan.spec(x), plan.group(x)) for x in plan.launches]
    waiting = sorted((one.waiting for one in memories), reverse=True)[:buffers]
    received = max((one.received for one in memories), default=0.0)
    return {
        "residuals": sum(one.alone for one in memories),
        "packets": sum(waiting) + received,
    }


@lru_cache(maxsize=32)
def _ops(plan: Plan, level: int) -> tuple[Op, ...]:
    """Build the operations of a step."""
    _check(plan, level)
    return _Step(plan, level).ops()


class _Step:
    """The operations of a step, unit by unit, forward and then backward."""

    def __init__(self, plan: Plan, level: int) -> None:
        settings = STRATEGIES[plan.strategy].settings(plan)
        self._plan, self._level, self._units = plan, level, units(plan)
        self._order = _order(self._units)
        self._buffers = int(settings["buffers"])
        self._ahead = int(settings["prefetch"]) if level == 3 else len(self._units)
        self._traffic = update_traffic(settings["optimizer"])

    def ops(self) -> tuple[Op, ...]:
        """List the operations; on every stream a gather goes before the sum ready with it."""
        found = [op for place in range(self._ahead + 1) for op in self._gather(place)]
        for place, (number, backward) in enumerate(self._order):
            found += self._compute(place)
            if self._level == 3:
                found += self._gather(place + self._ahead + 1)
            if backward:
                found += self._reduce(number)
        return (*found, *map(self._apply, reversed(self._units)))

    def _launch(self, place: int) -> int | None:
        """Return the launch that gathers the unit at a place of the order."""
        number, backward = self._order[place]
        return self._units[number].regather if backward else self._units[number].gather

    def _compute(self, place: int) -> list[Op]:
        """Compute a unit once its parameters are gathered and few enough gradients wait."""
        number, backward = self._order[place]
        unit, gather = self._units[number], self._launch(place)
        after = [] if gather is None else [self._end(gather)]
        if backward and self._level >= 2:
            after += self._summed(number + self._buffers)
        layers = self._plan.net.layers[unit.start : unit.stop]
        ordered = reversed(layers) if backward else layers
        ops = [compute(self._plan, layer, backward) for layer in ordered]
        return [replace(ops[0], after=tuple(after)), *ops[1:]]

    def _gather(self, place: int) -> list[Op]:
        """Gather a unit once it is updated and there is room for it."""
        index = self._launch(place) if place < len(self._order) else None
        if index is None:
            return []
        number, backward = self._order[place]
        after = [] if backward else [end_of(self._plan, self._units[number].reduce, Kind.APPLY, 1)]
        if self._level == 3:
            free = place - self._ahead - 1
            after += self._computed(max(free, number) if backward else free)
        elif place >= self._buffers:
            after.append(self._end(self._units[place - self._buffers].gather))
        return self._exchange(index, after)

    def _reduce(self, number: int) -> list[Op]:
        unit = self._units[number]
        done = end_of_layer(self._plan.net.layers[unit.start].name, backward=True)
        return self._exchange(unit.reduce, [done, *self._summed(number + self._buffers)])

    def _exchange(self, index: int, after: list[After]) -> list[Op]:
        first, *others = exchange_ops(self._plan, index, after[0])
        return [replace(first, after=tuple(after)), *others]

    def _apply(self, unit: LayerUnit) -> Op:
        launch = self._plan.launches[unit.reduce]
        (phase,) = find_method(launch.method).expected_phases(
            self._plan.spec(launch), self._plan.group(launch)
        )
        end = self._end(unit.reduce)
        return apply_op(self._plan, unit.reduce, self._traffic, end, share=phase.leaves)

    def _end(self, index: int) -> After:
        return end_of(self._plan, index, Kind.DECODE)

    def _summed(self, number: int) -> list[After]:
        """Return the end of a unit's sum, if there is such a unit."""
        return [self._end(self._units[number].reduce)] if number < len(self._units) else []

    def _computed(self, place: int) -> list[After]:
        """Return the end of the computation at a place of the order, if there is one."""
        if place < 0:
            return []
        number, backward = self._order[place]
        unit = self._units[number]
        layer = self._plan.net.layers[unit.start if backward else unit.stop - 1]
        return [end_of_layer(layer.name, backward)]


def _check(plan: Plan, level: int) -> None:
    """Refuse launches that this strategy cannot follow."""
    node = STRATEGIES[plan.strategy].settings(plan)["shard"] == "node"
    gather = Rule("parameter", "node" if node else "all")
    rules = {"": Rule("gradient", "all"), GATHER: gather}
    if level == 3 and any(launch.purpose == REGATHER for launch in plan.launches):
        rules[REGATHER] = gather
    check_rules(plan, rules)
    sums = (HYBRID,) if node else tuple(name for name in SUMS if name != HYBRID)
    for launch in plan.launches:
        allowed = GATHERS if launch.purpose else sums
        is_sharded = launch.method.startswith(PREFIX)
        if not is_sharded or find_sharded(launch.method).collective not in allowed:
            raise CommschedError(
                f"strategy {plan.strategy!r}: launch {launch.name!r} has method {launch.method!r};"
                f" allowed: {', '.join(f'{PREFIX}{name}+CODEC' for name in allowed)}"
            )

    for unit in units(plan):
        one, *others = (
            plan.launches[i] for i in (unit.reduce, unit.gather, unit.regather) if i is not None
        )
        for other in others:
            if (find_sharded(one.method).collective in LEVELS) != (
                find_sharded(other.method).collective in LEVELS
            ):
                raise CommschedError(
                    f"strategy {plan.strategy!r}: launches {one.name!r} and {other.name!r} have"
                    " shards in different orders; allowed: both by -levels, or neither"
                )


for number in (1, 2, 3):
    STRATEGIES.add(f"zero{number}")(Zero(number))
