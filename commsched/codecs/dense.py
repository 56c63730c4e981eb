"""All values in order, as they are."""

from commsched.coding.dense import Dense
from commsched.coding.registry import CODECS

CODECS.add("dense")(Dense())
