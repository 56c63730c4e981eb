"""A plan: the strategy, the launches with their reasons, and the net and machine they are for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from commsched.arrays import Ints
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.model import Group, Machine
from commsched.net import file as net_file
from commsched.net.bucket import BucketSpec, Piece, Slots
from commsched.net.graph import Net, Tensor
from commsched.records import (
    EXACT,
    REQUIRED,
    WRITTEN,
    Key,
    Stored,
    digest,
    normalise,
    one_of,
    to_data,
    unit,
)

Param = str | int | float | bool
Name = Annotated[str, Meta(min_length=1)]
Steps = Annotated[int, Meta(ge=0, le=2**31)]
Difference = Annotated[float, unit("ms", 1e-3), WRITTEN]  # s
Seconds = Annotated[Difference, Meta(ge=0)]
Rank = Annotated[int, Meta(ge=0, le=2**53)]
PURPOSES = one_of(
    "",
    "blocking",
    "cycling",
    "spread",
    "average",
    "refresh",
    "gather",
    "regather",
    "tensor",
    "dispatch",
    "combine",
)
FAMILIES = one_of("planner", "dense", "lossless", "half", "allowed")
PARAMS = Stored(
    kind=dict[str, Param],
    read=dict,
    write=lambda params: {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in params.items()
    },
    rounds=True,
)
MACHINE = Stored(
    kind=dict[str, Any],
    read=lambda data: machine_file.from_data(data, "machine"),
    write=machine_file.to_data,
)
NET = Stored(
    kind=dict[str, Any], read=lambda data: net_file.from_data(data, "graph"), write=net_file.to_data
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The reason for a method: predicted seconds of its exchange alone, and of the runner-up's.

    `margin`: increase of the iteration with the runner-up, s. `opposite`: the best method of the
    other kind, which compresses if the chosen method does not, and vice versa.
    """

    seconds: Annotated[Seconds, Key("predicted_ms")]
    runner_up: Annotated[str, WRITTEN] = ""
    runner_up_seconds: Annotated[Seconds, Key("runner_up_ms")] = 0.0
    margin: Difference = 0.0
    opposite: Annotated[str, WRITTEN] = ""
    opposite_margin: Difference = 0.0

    def __post_init__(self) -> None:
        normalise(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One bucket and the method that exchanges it."""

    name: Name
    pieces: tuple[Piece, ...]  # of activations: none
    after: Name  # the layer whose backward completes the bucket
    method: Name
    stream: Annotated[str, one_of("inside", "between")]  # nodes
    payload: Annotated[str, one_of("gradient", "parameter", "activation"), WRITTEN] = "gradient"
    # Among launches that are ready together, a lower priority goes first.
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31), WRITTEN] = 0
    group: Annotated[tuple[Rank, ...], WRITTEN] = ()  # ranks; empty: all
    split: Annotated[int, Meta(ge=1, le=2**53)] = 1  # equal teams of `group`, one after the other
    activations: Annotated[int, Meta(ge=0, le=2**53)] = 0  # elements of a payload of activations
    every: Annotated[int, Meta(ge=1, le=2**31), WRITTEN] = 1  # steps
    lag: Annotated[Steps, WRITTEN] = 0  # until the result is merged
    among: Annotated[str, one_of("all", "node", "peers")] = "all"  # teams, see `Plan.teams`
    purpose: Annotated[str, PURPOSES] = ""  # in the strategy; "": sum of gradients
    # First step; launches of a purpose that begin later replace all those before them.
    since: Steps = 0
    reason: Annotated[Reason | None, WRITTEN] = None

    @property
    def numel(self) -> int:
        """Return the elements of the bucket."""
        return self.activations + sum(stop - start for _, start, stop in self.pieces)

    @property
    def in_teams(self) -> bool:
        """Tell whether several teams of ranks may exchange at the same time."""
        return bool(self.group) or self.split > 1

    @property
    def places(self) -> Iterator[tuple[str, slice, slice]]:
        """Yield each piece's tensor, its slice of the tensor, and its slice of the bucket."""
        at = 0
        for name, start, stop in self.pieces:
            yield name, slice(start, stop), slice(at, at + stop - start)
            at += stop - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The predicted best plan of one family of methods for the plan's request."""

    family: Annotated[str, FAMILIES]
    allow: Annotated[tuple[str, ...], WRITTEN] = ()  # lossy codecs and methods that it may use
    used: Annotated[tuple[str, ...], WRITTEN] = ()  # codecs and methods of its launches
    iteration: Seconds
    low: Seconds  # p10 and p90 of the iteration
    high: Seconds
    exposed: Seconds  # communication while a rank does not compute, mean over ranks
    memory: Annotated[float, unit("bytes", 1.0), WRITTEN, Meta(ge=0)]  # on the rank that needs most

    def __post_init__(self) -> None:
        normalise(self)


# Compared by identity, because plans are keys of caches.
@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A self-contained, frozen plan; its strategy's `lower` gives each rank's operations."""

    FORMAT: ClassVar[str] = "commsched-plan/1"

    strategy: Annotated[Name, REQUIRED] = "sync"
    params: Annotated[Mapping[str, Param], PARAMS, REQUIRED] = field(default_factory=dict)
    mean: Annotated[bool, REQUIRED] = True  # the sum is divided by the number of ranks
    seed: Annotated[int, Meta(ge=0, le=2**62), REQUIRED] = 0
    planner: Annotated[str, REQUIRED] = ""
    iteration: Seconds = 0.0  # predicted by the planner; 0: not known
    bound: Seconds = 0.0  # lower bound over all plans of the same request; 0: not known
    launches: tuple[Launch, ...]
    machine: Annotated[Machine, MACHINE]
    net: Annotated[Net, NET, Key("graph")]
    # Plans that the planner compared.
    alternatives: tuple[Alternative, ...] = ()
    # Share of a tensor's norm that a step may leave behind; 0: not watched.
    max_error: Annotated[float, EXACT, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        normalise(self)

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the plan's file content; of a read plan, its file's hash."""
        return digest(to_data(self))

    def group(self, launch: Launch) -> Group:
        """Return the ranks of a launch; if it has several equal teams, those of the first."""
        if launch.among == "all" and not launch.group and launch.split == 1:
            return self.machine.everyone
        return self.team(self.teams(launch)[0])

    def group_of(self, launch: Launch, rank: int) -> Group | None:
        """Return the team of a rank in a launch; None if the rank does not take part."""
        teams = self.teams(launch)
        rows = np.flatnonzero((teams == rank).any(axis=1))
        return self.team(teams[rows[0]]) if len(rows) else None

    def team(self, ranks: Ints) -> Group:
        """Return the group of some ranks of the machine, in their order."""
        return self.machine.group(ranks.tolist())

    def teams(self, launch: Launch) -> Ints:
        """Return the ranks of each team that exchanges separately: (teams, members).

        "all": the ranks of `group`, in `split` teams. "node": the ranks of each node. "peers": the
        ranks with the same place in every node; the strategy says which team of peers exchanges
        when. Every rank is in one team.
        """
        if launch.among == "all":
            ranks = np.array(launch.group or self.machine.everyone.ranks, np.int64)
            return ranks.reshape(launch.split, -1)
        everyone = self.machine.everyone
        lanes = everyone.lanes  # raises if nodes have different numbers of ranks
        members = np.array(everyone.members, np.int64).reshape(-1, lanes)
        return members if launch.among == "node" else members.T

    def spec(self, launch: Launch) -> BucketSpec:
        """Return the expected content of a launch's bucket."""
        if launch.payload == "activation":
            return replace(BucketSpec.uniform(launch.activations), slots=self._slots(launch))
        found = self._specs.get(launch.pieces)
        if found is None:
            found = self._specs[launch.pieces] = BucketSpec.of(launch.pieces, self.net.tensors)
        return found

    @cached_property
    def _specs(self) -> dict[tuple[Piece, ...], BucketSpec]:
        return {}

    def _slots(self, launch: Launch) -> Slots | None:
        """Return the tokens of a launch that sends them to experts, or back."""
        experts = self.net.experts_of.get(launch.after)
        if launch.purpose not in ("dispatch", "combine") or experts is None:
            return None
        back = launch.purpose == "combine"
        return Slots(tuple(experts.taken.tolist()), experts.slots, experts.width, back)

    def check(self) -> None:
        """Refuse a plan that loses, repeats or misplaces a gradient, or a parameter."""
        names = [launch.name for launch in self.launches]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise CommschedError(f"two launches are named {twice!r}")
        position = {layer.name: i for i, layer in enumerate(self.net.layers)}
        home = {t.name: layer.name for layer in self.net.layers for t in layer.tensors}
        covered: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = {}
        for launch in self.launches:
            where = f"launch {launch.name!r}"
            if launch.after not in position:
                raise CommschedError(f"{where}: no layer named {launch.after!r} in the net")
            if launch.group and not set(launch.group) <= set(range(self.machine.size)):
                raise CommschedError(
                    f"{where}: a rank of the group is outside 0..{self.machine.size - 1}"
                )
            self._check_teams(launch, where)
            if launch.payload == "activation":
                continue
            runs = covered.setdefault((launch.purpose, launch.since), {t: [] for t in home})
            for piece in launch.pieces:
                if piece.tensor not in home:
                    raise CommschedError(f"{where}: no tensor named {piece.tensor!r} in the net")
                if position[home[piece.tensor]] < position[launch.after]:
                    raise CommschedError(
                        f"{where}: tensor {piece.tensor!r} is ready only after layer"
                        f" {home[piece.tensor]!r}, which comes later than {launch.after!r}"
                    )
                runs[piece.tensor].append((piece.start, piece.stop))
        if not self.launches:
            covered["", 0] = {t: [] for t in home}
        for (purpose, _), together in covered.items():
            for name, found in together.items():
                if found or purpose != "regather":  # parameters that stay gathered have no regather
                    _check_cover(self.net.tensors[name], found)

    def _check_teams(self, launch: Launch, where: str) -> None:
        if (launch.payload == "activation") != (not launch.pieces and launch.activations > 0):
            raise CommschedError(
                f"{where}: a payload of activations has a number of 'activations' and no pieces,"
                " any other payload has pieces alone"
            )
        if launch.among == "all":
            count = len(launch.group) or self.machine.size
            if count % launch.split:
                near_by = max(k for k in range(1, launch.split) if count % k == 0)
                raise CommschedError(
                    f"{where}: {count} ranks do not divide into {launch.split} equal teams;"
                    f" nearest: {near_by}"
                )
            return
        if launch.group or launch.split > 1:
            raise CommschedError(f"{where}: give ranks in 'group', or 'among', not both")
        try:
            self.teams(launch)
        except CommschedError as error:
            raise CommschedError(f"{where}: among {launch.among!r}: {error}") from None


def _check_cover(tensor: Tensor, runs: list[tuple[int, int]]) -> None:
    """Check that every element of a tensor is exchanged exactly once."""
    covered = 0
    for start, stop in (*sorted(runs), (tensor.numel, tensor.numel)):
        if start != covered:
            how = "never" if start > covered else "more than once"
            raise CommschedError(
                f"tensor {tensor.name!r}: element {min(start, covered)} is exchanged {how}; allowed"
                " is exactly once"
            )
        covered = stop
