"""A net that predicts the next word from three, with sparse gradients: `words:WIDTH:VOCABULARY`."""

from commsched.train.layers.dense import Linear, Reshape, Tanh
from commsched.train.layers.embedding import Embedding
from commsched.train.layers.layer import LayerChain, TrainableNet
from commsched.train.registry import NETS, sizes

LAST = 3  # words that are read
SHARE = 2  # units of the hidden layer per number of a word


@NETS.family("words:64:2000")
def words(parameters: list[str]) -> TrainableNet:
    """Read WIDTH, of a word's vector, and VOCABULARY.

    Word vectors, a tanh layer, a softmax. Source: Bengio et al., "A neural probabilistic language
    model", JMLR 3, 2003.
    """
    known = {"the width": (1, 64, 4096), "the vocabulary": (2, 2000, 10**6)}
    width, vocabulary = sizes(parameters, known)
    inner = [
        Reshape("joined", (LAST * width,)),
        Linear("hidden", LAST * width, SHARE * width),
        Tanh("hidden.tanh"),
    ]
    layers = (
        Embedding("embedding", vocabulary, width, 0.3),
        LayerChain("hidden", inner),
        Linear("output", SHARE * width, vocabulary),
    )
    return TrainableNet(f"words:{width}:{vocabulary}", f"words:{vocabulary}:{LAST}", layers)
