"""The baselines that a search has to simulate: those not far behind its own plan."""

from collections.abc import Iterable, Iterator

from commsched.errors import CommschedError
from commsched.exchange.pair import LIBRARY
from commsched.planner.search.branch_and_bound import bounds
from commsched.planner.search.curve import LINEAR
from commsched.planner.search.problem import BASELINES, Placed, Problem
from commsched.planner.space import Candidate

NEAR = 1.05  # baselines within this factor of the shortest simulated iteration are simulated
FAR = 1.3  # baselines beyond this factor of ours are far; closed forms err by up to 15 %
LONG = 256  # launches: longer plans are not improved by single changes
MANY = 64  # launches: only the first of the longer plans is simulated
WHOLE = ("espresso",)  # baselines that try methods for one whole tensor after another


def baselines(
    problem: Problem, names: Iterable[str], asked: frozenset[str]
) -> Iterator[tuple[str, Candidate]]:
    """Yield the baselines `names`, but for plans whose methods are all in `asked`."""
    for name in names:
        try:
            candidate = problem.within(BASELINES[name](problem))
        except CommschedError:
            continue  # the baseline needs a codec that is not allowed
        if not Placed(problem, candidate).names <= asked:
            yield name, candidate


def near_baselines(quick: Problem, asked: frozenset[str], least: float) -> list[Candidate]:
    """Return baselines of few launches that are not far behind by closed forms, the best first.

    asked: see `baselines`. least: s of our iteration by closed forms.
    """
    if least <= quick.clock.floor(quick.request.net.numel):
        return []
    names = (name for name in BASELINES if name not in WHOLE or len(quick.tensors) <= MANY)
    short = (one for _, one in baselines(quick, names, asked) if len(one.choices) <= MANY)
    found = {one: quick.evaluator.one(one) for one in short}
    return sorted((one for one in found if found[one] <= FAR * least), key=found.__getitem__)


def hopeless(problem: Problem, least: float) -> bool:
    """Tell whether one launch per tensor, with any methods, takes far longer than `least` s."""
    made = problem.tensors
    if len(made) <= LONG:
        return False
    (bound,) = bounds(problem, [made], problem.early).tolist()
    return bool(bound > NEAR * least)


def far(problem: Problem, candidate: Candidate, ours: Candidate) -> bool:
    """Tell whether a baseline is far behind ours by closed forms, so that it need not be played."""
    if {choice.method for choice in candidate.choices} <= set(problem.prices.free):
        return False
    both, methods = (candidate, ours), problem.prices.methods
    used = {choice.method: methods[choice.method] for one in both for choice in one.choices}
    rough = problem.rough(used.values())
    theirs, own = (rough.evaluator.one(rough.moved(one, problem)) for one in both)
    return theirs > FAR * own


def simulated_up_to(problem: Problem, candidate: Candidate) -> float:
    """Return the factor of the best iteration within which a baseline is still simulated.

    A measured all-reduce of the library ends on all ranks together, so its evaluation has only the
    error of its curve; other exchanges may end early on some ranks.
    """
    library = problem.named(LIBRARY)
    if any(choice.method != library for choice in candidate.choices):
        return NEAR
    long = len(candidate.choices) > LONG
    if problem.request.machine.native:
        return 1.0 if long else 1.0 + 2 * LINEAR
    return 1.0 + 2 * LINEAR if long else NEAR
