"""The part of a bucket's state that outlives a step and is stored in checkpoints."""

from collections.abc import Mapping

from commsched.coding.codec import State

# Other entries are new in every step, or follow from the bucket alone.
NAMES = ("lost", "mask", "ok cuts", "ok threshold", "powersgd right")
FAMILIES = ["adaqp ", "dgc ", "topk threshold "]  # followed by where a run begins


def keep(beginning: str) -> None:
    """Store entries with this beginning, too; for plug-ins outside the package."""
    if beginning not in FAMILIES:
        FAMILIES.append(beginning)


def kept_of(state: State) -> State:
    """Return the entries that outlive a step: arrays, numbers, and tuples of them."""
    outlives = tuple(FAMILIES)
    return {key: value for key, value in state.items() if key in NAMES or key.startswith(outlives)}


def restore(state: State, kept: Mapping[str, object]) -> None:
    """Restore the entries that `kept_of` returned."""
    state.update(kept)
