"""A plan: the strategy, the launches with their reasons, and the net and machine they are for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from commsched.arrays import Ints
from commsched.errors import CommschedError
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Net, Tensor

Param = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a method was chosen: predicted seconds of the exchange alone, and of the runner-up.

    A margin is by how many seconds the iteration grows with another method for this launch. The
    opposite is the best method that compresses where the chosen one does not, and the other way.
    """

    seconds: float
    runner_up: str = ""
    runner_up_seconds: float = 0.0
    margin: float = 0.0
    opposite: str = ""
    opposite_margin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One bucket and the method that exchanges it."""

    name: str
    pieces: tuple[Piece, ...]
    after: str  # the layer whose backward completes the bucket
    method: str
    stream: str  # "inside" or "between" nodes
    payload: str = "gradient"
    priority: int = 0  # lower goes first among launches that are ready together
    group: tuple[int, ...] = ()  # ranks; empty: all
    among: str = "all"  # who exchange together, see `Plan.teams`: "all", "node" or "peers"
    purpose: str = ""  # which of a strategy's exchanges it is part of; "": of the gradients
    every: int = 1  # steps
    lag: int = 0  # steps until the result is merged
    # First step; launches of a purpose that begin later stand for those before, all of them.
    since: int = 0
    reason: Reason | None = None

    @property
    def places(self) -> Iterator[tuple[str, slice, slice]]:
        """Of each piece: its tensor, where it lies there, and where in the bucket."""
        at = 0
        for name, start, stop in self.pieces:
            yield name, slice(start, stop), slice(at, at + stop - start)
            at += stop - start


@dataclass(frozen=True, kw_only=True, eq=False)  # compared by identity: caches hang on it
class Plan:
    """Self-contained and frozen; what it means for each rank is the strategy's `lower`."""

    graph: Net
    machine: Machine
    launches: tuple[Launch, ...]
    strategy: str = "sync"
    params: Mapping[str, Param] = field(default_factory=dict)
    mean: bool = True  # the sum is divided by the number of ranks
    seed: int = 0
    planner: str = ""
    iteration: float = 0.0  # s, as the planner predicts it; 0: it does not say
    bound: float = 0.0  # s below which no plan of the same request lies; 0: none known
    max_error: float = 0.0  # share of a tensor's norm that a step may leave behind; 0: not watched
    hash: str = ""  # SHA-256 of the plan's file content without this key

    def group(self, launch: Launch) -> Group:
        """The ranks that take part in a launch; of several teams the first, which is like all."""
        if launch.among == "all" and not launch.group:
            return self.machine.everyone
        return self.team(self.teams(launch)[0])

    def group_of(self, launch: Launch, rank: int) -> Group | None:
        """The team of a rank in a launch; None where it has no part."""
        teams = self.teams(launch)
        rows = np.flatnonzero((teams == rank).any(axis=1))
        return self.team(teams[rows[0]]) if len(rows) else None

    def team(self, ranks: Ints) -> Group:
        """Some ranks of the machine, in their order."""
        nodes = tuple(self.machine.node_of_rank[r] for r in ranks)
        return Group(ranks=tuple(map(int, ranks)), nodes=nodes)

    def teams(self, launch: Launch) -> Ints:
        """The ranks of each team that exchanges apart from the others: (teams, members).

        "node": the ranks of each node. "peers": those with the same place in every node. A launch
        among peers is for one team at a time, as the strategy says; every rank is in one team.
        """
        if launch.among == "all":
            return np.array([launch.group or self.machine.everyone.ranks], np.int64)
        everyone = self.machine.everyone
        lanes = everyone.lanes  # raises where nodes have different numbers of ranks
        members = np.array(everyone.members, np.int64).reshape(-1, lanes)
        return members if launch.among == "node" else members.T

    def spec(self, launch: Launch) -> BucketSpec:
        """The expected content of a launch's bucket."""
        return BucketSpec.of(launch.pieces, self.graph.tensors)

    def check(self) -> None:
        """Refuse a plan that loses, repeats or misplaces a gradient, or a parameter."""
        names = [launch.name for launch in self.launches]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise CommschedError(f"two launches are named {twice!r}")
        position = {layer.name: i for i, layer in enumerate(self.graph.layers)}
        home = {t.name: layer.name for layer in self.graph.layers for t in layer.tensors}
        covered: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = {}
        for launch in self.launches:
            where = f"launch {launch.name!r}"
            if launch.after not in position:
                raise CommschedError(f"{where}: no layer named {launch.after!r} in the net")
            if launch.group and not set(launch.group) <= set(range(self.machine.size)):
                raise CommschedError(
                    f"{where}: a rank of the group is outside 0..{self.machine.size - 1}"
                )
            if launch.among != "all":
                self._check_teams(launch, where)
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
        for together in covered.values():
            for name, found in together.items():
                _check_cover(self.graph.tensors[name], found)

    def _check_teams(self, launch: Launch, where: str) -> None:
        if launch.group:
            raise CommschedError(f"{where}: give ranks in 'group', or 'among', not both")
        try:
            self.teams(launch)
        except CommschedError as error:
            raise CommschedError(f"{where}: among {launch.among!r}: {error}") from None


def _check_cover(tensor: Tensor, runs: list[tuple[int, int]]) -> None:
    """Every element of a tensor is exchanged exactly once."""
    ends = np.array([0, *(stop for _, stop in sorted(runs))])
    starts = np.array([*(start for start, _ in sorted(runs)), tensor.numel])
    wrong = np.flatnonzero(ends != starts)
    if len(wrong):
        first = int(wrong[0])
        how = "never" if starts[first] > ends[first] else "more than once"
        at = int(min(starts[first], ends[first]))
        raise CommschedError(
            f"tensor {tensor.name!r}: element {at} is exchanged {how}; allowed is exactly once"
        )
