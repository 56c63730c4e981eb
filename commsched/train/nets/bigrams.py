"""A net that predicts the next word from one word, by a known law: `bigrams:WIDTH:VOCABULARY`."""

from commsched.train.layers.dense import Linear
from commsched.train.layers.embedding import Embedding
from commsched.train.layers.layer import TrainableNet
from commsched.train.registry import NETS, sizes


@NETS.family("bigrams:64:2000")
def bigrams(parameters: list[str]) -> TrainableNet:
    """Read WIDTH, of a word's vector, and VOCABULARY; a softmax of a product of two tables."""
    known = {"the width": (1, 64, 4096), "the vocabulary": (2, 2000, 10**6)}
    width, vocabulary = sizes(parameters, known)
    layers = (
        Embedding("embedding", vocabulary, width, 0.3),
        Linear("output", width, vocabulary),
    )
    return TrainableNet(f"bigrams:{width}:{vocabulary}", f"bigrams:{vocabulary}", layers)
