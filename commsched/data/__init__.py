"""Data to train on that come with other packages: plug-ins give a `Source`, or a family of them."""

from commsched.data.base import FOLDS, Data, Samples, Source, split
from commsched.data.order import batch_of, epoch_of, part_of
from commsched.registry import Registry

DATA: Registry[Source] = Registry("data", "commsched.data")

__all__ = [
    "DATA",
    "FOLDS",
    "Data",
    "Samples",
    "Source",
    "batch_of",
    "epoch_of",
    "part_of",
    "split",
]
