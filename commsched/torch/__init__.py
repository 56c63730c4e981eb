"""A PyTorch script at both ends of the loop: nets come from it, and plans run in it.

Nothing else of commsched imports this package or torch.
"""

import importlib.util

from commsched.errors import CommschedError

if importlib.util.find_spec("torch") is None:
    raise CommschedError("commsched.torch needs PyTorch; pip install 'commsched[torch]'")

from commsched.torch.attach import Sync, attach

__all__ = ["Sync", "attach"]
