"""The times until which streams are busy, for a role's ranks or for a planner's candidates."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from commsched.arrays import Floats
from commsched.simulate.cpu import SharedCores, under_compute


class Clocks:
    """The streams of many columns (ranks or candidates), and the causes that slow them.

        begin = max(stream is free, inputs are ready)

    overlap: the share of an exchange that progresses while its rank computes.
    """

    def __init__(
        self, shape: int | tuple[int, ...], cores: SharedCores | None = None, overlap: float = 1.0
    ) -> None:
        self.free: dict[str, Floats] = defaultdict(lambda: np.zeros(shape))  # s, by stream
        self.cores = cores or SharedCores(0.0)
        self._overlap = overlap

    def begin(self, stream: str, ready: Floats) -> Floats:
        """Return when a stream can begin what is ready."""
        return np.maximum(self.free[stream], ready)

    def code(self, stream: str, start: Floats, seconds: Floats | float) -> Floats:
        """Place coding that takes some seconds on idle cores; return when it ends."""
        end = self.free[stream] = self.cores.coded(start, start + seconds)
        return end

    def exchange(
        self,
        stream: str,
        start: Floats,
        end: Floats,
        within: float = 0.0,
        last: Floats | None = None,
    ) -> Floats:
        """Place an exchange that would end at `end` if its rank did nothing else; return its end.

        within [s]: a rank's own work in it; last [s]: when its last rank begins, `start` for None.
        """
        end = under_compute(start, end, self.free["compute"], self._overlap)
        if within:
            end = end + within
        end = self.cores.stretched(start if last is None else np.minimum(last, end), end)
        self.free[stream] = end
        return end

    def phase(
        self,
        ready: Floats,
        seconds: Sequence[Floats],
        heard: Floats | float = 0.0,
        all_heard: Floats | float = 0.0,
        *,
        foreseen: bool = False,
    ) -> Floats:
        """Place the encode, exchange and decode of one phase; return when it is decoded.

        seconds: of the three on idle cores. heard, all_heard [s]: until the decode stream and the
        exchange streams of all ranks take up what is ready. foreseen: the cores know the encode.
        """
        encode, exchange, decode = seconds
        start = self.begin("encode", ready)
        if foreseen:
            encoded = self.free["encode"] = start + encode
        else:
            encoded = self.code("encode", start, encode)
        start = self.begin("exchange", encoded + all_heard)
        exchanged = self.exchange("exchange", start, start + exchange)
        return self.code("decode", self.begin("decode", exchanged + heard), decode)
