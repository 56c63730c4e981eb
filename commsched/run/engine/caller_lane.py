"""The compute lane of a rank whose caller computes: spans between the calls of the engine."""

from math import isfinite

from commsched.errors import CommschedError
from commsched.program.layer_ops import backward_of
from commsched.run.engine.board import WaitStatus
from commsched.run.engine.engine import Engine
from commsched.run.job.clock import now
from commsched.timeline.check import LONGEST


class CallerLane:
    """A recorder of the caller's compute: layers of backward, uses of results, own spans."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue = engine.device_queue
        self._since = self._queue.device.mark()  # when the span under way began
        self._using, self._name = -1, ""  # launch of the result taken last; name of its span
        self._used: set[int] = set()
        self._added: dict[int, set[str]] = {}  # newest steps -> names of the caller's spans

    def resume(self) -> None:
        """Restart the current span now."""
        self._since = self._queue.device.mark()

    def begin(self) -> None:
        """Begin a step, in which no result is used yet."""
        self._using = -1
        self._used.clear()

    def complete(self, step: int, layer: str) -> None:
        """Record the finished backward pass of a layer, and post it for the layer's buckets."""
        name = backward_of(layer).name
        self._since = self._queue.add(step, name, self._since)
        self._engine.board.mark(step, name, now())

    def uses(self, launch: int) -> bool:
        """Tell whether this launch's result is the last one taken."""
        return launch == self._using

    def use(self, launch: int) -> None:
        """Begin to use the result of a launch."""
        self._using = launch
        self._name = f"{self._engine.plan.launches[launch].name}/apply"  # whatever plan follows
        self.resume()

    def end_use(self, step: int) -> None:
        """Record the use of the last result, a single span per bucket and step."""
        if self._using >= 0 and self._using not in self._used:
            self._queue.add(step, self._name, self._since)
            self._used.add(self._using)
        self._using = -1

    def block(self, step: int, what: str, missing: list[str]) -> None:
        """Wait for operations of a step, under the deadline; `what` needs them."""
        board = self._engine.board
        waits = f"waits for {', '.join(missing)}"
        board.show("compute", WaitStatus(step, what, waits, now(), True))
        board.until_done((step, end) for end in missing)
        board.idle("compute")

    def add(self, step: int, name: str, start: float, end: float) -> None:
        """Record a span that the caller measured, in s of this rank's clock; reject a wrong one."""
        start, end = float(start), float(end)
        what = f"step {step}: span {name!r}"
        if not (name and name.isprintable()):
            raise CommschedError(f"{what}: a name must be printable and not empty")
        if not (isfinite(start) and isfinite(end) and start <= end):
            raise CommschedError(
                f"{what}: needs a finite start and an end not before it, got {start:.9g} to"
                f" {end:.9g} s"
            )
        away = max(start - now(), end - now(), key=abs)
        if abs(away) > LONGEST:
            raise CommschedError(
                f"{what}: is {away:.9g} s from now on the clock of time.perf_counter; at most"
                f" {LONGEST:g} s are allowed"
            )
        self._added = {at: names for at, names in self._added.items() if at >= step - 1}
        if name in self._added.setdefault(step, set()):
            raise CommschedError(f"{what}: is there already; names must differ within a step")
        self._added[step].add(name)
        self._engine.recorder.add("compute", name, step, start, end)
