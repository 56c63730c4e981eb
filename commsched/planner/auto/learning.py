"""The cost in learning of a plan, as the convergence tables of this project measured it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec

from commsched import files, shipped
from commsched.exchange.registry import find_method, lossy_name
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.frames.zero import gathered
from commsched.program.expert_groups import COMBINE, DISPATCH
from commsched.program.registry import STRATEGIES
from commsched.program.units import GATHER, REGATHER

DENSE = "sync"  # the strategy of a codec's lesson
NOT_MEASURED = "not measured"
MOVES = (GATHER, REGATHER, DISPATCH, COMBINE)  # purposes of launches that sum nothing
Word = Annotated[str, msgspec.Meta(min_length=1)]


class Lesson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case of a convergence table, compared with dense sums under the same optimiser."""

    net: Word
    case: Word
    strategy: Word
    params: dict[str, Param]  # the parameters on which learning depends
    codecs: tuple[str, ...]  # lossy codecs and methods
    unit: Word  # of `lost`
    lost: float  # above 0: worse than dense sums
    half: Annotated[float, msgspec.Meta(ge=0)]  # half the width of a 95 % interval
    trainings: Annotated[int, msgspec.Meta(ge=1)]


class Lessons(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lessons of all tables."""

    format: str = "commsched-learning/1"
    source: Word
    lessons: tuple[Lesson, ...]


class LearningCost(NamedTuple):
    """The cost in learning of a plan: what it loses against dense sums, and on which evidence."""

    lost: float | None  # worst of the nets; None: not measured
    words: str

    def __str__(self) -> str:
        return self.words


@lru_cache(maxsize=1)
def lessons() -> tuple[Lesson, ...]:
    """Read the shipped lessons; a parameter that a lesson does not list had its default."""
    found = files.read(shipped.root() / "learning.json", Lessons).lessons
    return tuple(msgspec.structs.replace(one, params=_all(one)) for one in found)


def _all(lesson: Lesson) -> dict[str, Param]:
    return decisive(lesson.strategy, dict(STRATEGIES[lesson.strategy].defaults)) | lesson.params


def decisive(strategy: str, settings: dict[str, Param]) -> dict[str, Param]:
    """Return the parameters on which learning depends."""
    known = STRATEGIES[strategy].parameters
    return {key: value for key, value in settings.items() if known[key].learns}


def lossy_codecs(plan: Plan) -> tuple[str, ...]:
    """List the codecs and methods of a plan that lose something."""
    some = [launch.method for launch in plan.launches if loses(plan, launch)]
    return tuple(sorted({find_method(name).coding for name in some}))


def loses(plan: Plan, launch: Launch) -> bool:
    """Tell whether a launch loses something of its values; none are lost that move in their type.

    A sum in a type of two bytes is rounded.
    """
    method = find_method(launch.method)
    moved = launch.purpose in MOVES and method.coding == gathered(plan.net, "auto")
    return not (method.lossless or moved)


def cost(plan: Plan) -> LearningCost:
    """Look up the cost of a plan's strategy, parameters and codecs on the worst of the nets."""
    strategy, codecs = STRATEGIES[plan.strategy], lossy_codecs(plan)
    params = decisive(plan.strategy, strategy.settings(plan))
    if strategy.exact:
        if params != decisive(plan.strategy, dict(strategy.defaults)):
            same = _worst(plan.strategy, params, codecs)
            return (
                same
                if same.lost is not None
                else LearningCost(None, f"{same} with {_shown(params)}")
            )
        if not codecs:
            return LearningCost(0.0, "none: the sums of one process")
        found = [cost_of(codec) for codec in codecs]
        return max(found, key=lambda one: (one.lost is None, one.lost or 0.0))
    return _worst(plan.strategy, params, codecs)


def cost_of(codec: str) -> LearningCost:
    """Look up the cost of a lossy codec or method under `sync` on the worst of the nets."""
    return _worst(DENSE, None, (lossy_name(codec),))


def may_be_chosen(lost: float, unmeasured: bool) -> Callable[[Plan], bool]:
    """Return a test of plans: the loss is at most `lost`, or unknown and `unmeasured` is set."""

    def test(plan: Plan) -> bool:
        found = cost(plan).lost
        return unmeasured if found is None else found <= lost

    return test


def _alike(one: str, other: str) -> bool:
    """Tell whether two strategies with equal parameters learn alike: equal, or both exact."""
    return one == other or (STRATEGIES[one].exact and STRATEGIES[other].exact)


def _worst(strategy: str, params: dict[str, Param] | None, codecs: tuple[str, ...]) -> LearningCost:
    """Return the worst lesson of a strategy with these parameters and codecs."""
    known = [x for x in lessons() if _alike(x.strategy, strategy) and set(codecs) <= set(x.codecs)]
    same = [x for x in known if params is None or x.params == params]
    if same:
        worst = max(same, key=lambda one: one.lost)
        nets = len({lesson.net for lesson in same})
        also = f", the worst of {nets} nets" if nets > 1 else ""
        return LearningCost(worst.lost, f"{_amount(worst)} ({worst.net}{also})")
    if codecs and params is None:
        return LearningCost(None, f"{NOT_MEASURED}: {', '.join(codecs)}")
    return LearningCost(None, NOT_MEASURED + _nearest(known, params or {}))


def _nearest(known: list[Lesson], params: dict[str, Param]) -> str:
    """Say with which parameters the most similar lesson was measured."""
    if not known:
        return ""

    def different(lesson: Lesson) -> dict[str, Param]:
        keys = lesson.params.keys() & params.keys()
        return {key: lesson.params[key] for key in keys if lesson.params[key] != params[key]}

    least = different(min(known, key=lambda lesson: len(different(lesson))))
    return f"; measured with {_shown(least)}" if least else ""


def _amount(lesson: Lesson) -> str:
    """Write a loss or a gain with its interval."""
    word = "gains" if lesson.lost < 0 else "loses"
    return f"{word} {abs(lesson.lost):.2g} +- {lesson.half:.2g} {lesson.unit}"


def _shown(params: dict[str, Param]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(params.items()))
