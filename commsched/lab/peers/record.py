"""The files of the contenders' measurements."""

from typing import Literal

import msgspec

ALONE = "computing alone"  # the contender that exchanges nothing
CAP = 25  # default MB of a bucket of DistributedDataParallel
DENSE = f"ddp {CAP} MB"  # the contender whose held-out losses others must reach


class Trained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of one contender."""

    name: str  # such as "ddp 25 MB", "ddp fp16", "plan lossless"
    seconds: tuple[float, ...]  # of a step on the slowest rank: the mean of each turn
    loss: float | None  # held out, after all steps; None: it diverged


class PeerTurns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All contenders of one job, which trained in turns."""

    format: Literal["commsched-peers/1"] = "commsched-peers/1"
    model: str
    seed: int
    steps: int  # of a turn
    trained: tuple[Trained, ...]


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Held-out losses of all contenders after some steps."""

    format: Literal["commsched-learned/1"] = "commsched-learned/1"
    model: str
    seed: int
    steps: int
    losses: dict[str, float | None]  # by contender; None: it diverged
