"""An autoencoder for patches of photographs: `autoencoder:WIDTH:CODE`."""

from commsched.train.data.photographs import LEVELS, SIDE
from commsched.train.layers.dense import Linear, Reshape, hidden
from commsched.train.layers.layer import LayerChain, TrainableNet
from commsched.train.registry import NETS, sizes

PIXELS = SIDE * SIDE


@NETS.family("autoencoder:128:16")
def autoencoder(parameters: list[str]) -> TrainableNet:
    """Read WIDTH, of the layers around the code, and CODE, the width of the code.

    The loss is the cross-entropy of each pixel's grey level (van den Oord et al., "Pixel recurrent
    neural networks", ICML 2016, whose pixels have a softmax, too).
    """
    width, code = sizes(parameters, {"the width": (1, 128, 4096), "the code": (1, 16, 4096)})
    pixels = [Linear("pixels", width, PIXELS * LEVELS), Reshape("levels", (PIXELS, LEVELS))]
    layers = (
        hidden("encode", PIXELS, width),
        hidden("code", width, code),
        hidden("decode", code, width),
        LayerChain("pixels", pixels),
    )
    return TrainableNet(f"autoencoder:{width}:{code}", "photographs", layers)
