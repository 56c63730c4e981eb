"""All values in order, unchanged."""

from commsched.coding.dense import Dense
from commsched.coding.registry import CODECS

CODECS.add("dense")(Dense())
