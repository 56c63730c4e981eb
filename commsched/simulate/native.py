"""The meaning of `native` in a plan: the machine's library, its algorithm and its protocol."""

from collections import Counter

from commsched.exchange.registry import find_method
from commsched.machine.library import described, library_of
from commsched.plan.model import Launch, Plan
from commsched.units import count


def algorithm(plan: Plan, launch: Launch) -> str:
    """Name the algorithm of a launch, such as "NCCL ring, LL128"; "" if no library sums it."""
    if not find_method(launch.method).library:
        return ""
    group = plan.group(launch)
    return described(plan.machine, group, 4.0 * plan.spec(launch).numel)


def sentence(plan: Plan) -> str:
    """Say which library a plan's `native` stands for, and what it does; "" without `native`."""
    taken = Counter(filter(None, (algorithm(plan, launch) for launch in plan.launches)))
    if not taken:
        return ""
    title = library_of(plan.machine).title
    parts = [
        f"{name.removeprefix(title + ' ')} ({number} of {count(len(plan.launches), 'bucket')})"
        for name, number in taken.most_common()
    ]
    start = f"{plan.planner} ({title})" if plan.planner else f"native ({title})"
    default = "" if plan.machine.library else "; the machine file names no library"
    return f"{start}: native is {'; '.join(parts)}{default}"
