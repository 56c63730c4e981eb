"""The device that a rank computes on, by its name."""

from commsched.kernels.device import gpus
from commsched.run.wire.device import HOST, ComputeDevice, check_device


def find_device(name: str, place: int | None = 0) -> ComputeDevice:
    """Open a device by name for the rank with number `place` on its host, ranks in turn.

    None: the GPU that this thread uses now.
    """
    check_device(name)
    if name == "cpu":
        return HOST
    count = gpus()
    from commsched.run.wire.cuda import open_gpu

    return open_gpu(None if place is None else place % count)
