"""A room in which a test may register plug-ins that no other test sees."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from commsched import plug_ins
from commsched.coding.registry import CODECS
from commsched.exchange.pair import route
from commsched.schedule.registry import COLLECTIVES


@contextmanager
def room() -> Iterator[None]:
    """Forget in the end what was registered in the block."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (COLLECTIVES, CODECS):
            assert len(registry)  # it is filled
            for kind in ("_items", "_plug_ins", "_families", "_made"):
                patch.setattr(registry, kind, dict(getattr(registry, kind)))
        patch.setattr(plug_ins, "_loaded", set(plug_ins._loaded))
        patch.setenv(plug_ins.VARIABLE, "")
        yield
    route.cache_clear()
