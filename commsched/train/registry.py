"""All nets that can be trained, and all data to train them on, by name."""

from commsched.registry import Registry
from commsched.train.layers.layer import TrainableNet
from commsched.train.samples import Source

NETS: Registry[TrainableNet] = Registry("net to train", "commsched.train.nets")
DATA: Registry[Source] = Registry("data", "commsched.train.data")
