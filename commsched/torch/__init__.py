"""The integration with PyTorch: nets come from a training script, and plans run in the script.

Of the rest of commsched only `cli` and `lab` import this package or torch.
"""

import importlib.util

from commsched.errors import CommschedError, install

if importlib.util.find_spec("torch") is None:
    raise CommschedError(f"commsched.torch needs PyTorch; {install('torch')}")

from commsched.torch.attach import attach
from commsched.torch.capture import capture
from commsched.torch.checkpoints import Checkpoints
from commsched.torch.data_parallel import DataParallel
from commsched.torch.ddp_hook import hook
from commsched.torch.meta import model_work
from commsched.torch.sync import Sync

__all__ = ["Checkpoints", "DataParallel", "Sync", "attach", "capture", "hook", "model_work"]
