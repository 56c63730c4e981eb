"""The part of a bucket's state that outlives a step and is stored in checkpoints."""

from collections.abc import Mapping

from commsched.coding.codec import State

# Other entries are new in every step, or follow from the bucket alone.
NAMES = ("lost", "mask", "ok cuts", "ok threshold", "powersgd right")
FAMILIES = ("adaqp ", "dgc ", "topk threshold ")  # followed by where a run begins


def kept_of(state: State) -> State:
    """Return the entries that outlive a step: arrays, numbers, and tuples of them."""
    return {key: value for key, value in state.items() if key in NAMES or key.startswith(FAMILIES)}


def restore(state: State, kept: Mapping[str, object]) -> None:
    """Restore the entries that `kept_of` returned."""
    state.update(kept)
