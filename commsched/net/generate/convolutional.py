"""Convolutional nets from published architectures: parameters, flops, traffic, activations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from commsched.net.graph import Layer, Net, Tensor

Kernel = tuple[int, int]

NOTE = (
    "generated from the architecture by commsched.net.generate.convolutional: flops are 2 per"
    " multiply and add of the convolutions and matrices, backward twice that; memory traffic"
    " estimated: every operand of an unfused float32 kernel moves once, a batch normalisation"
    " reads twice, backward twice the forward; activations are the outputs of convolutions and of"
    " normalisations; nothing here is measured"
)
VGG = "Simonyan & Zisserman, 'Very deep convolutional networks', ICLR 2015, configuration E"
WIDE = (
    "Zagoruyko & Komodakis, 'Wide residual networks', BMVC 2016, as wide_resnet101_2 of torchvision"
)
RESNET = "He et al., 'Deep residual learning', CVPR 2016, section 4.2 (CIFAR-10, n = 5, option A)"
INCEPTION = "Szegedy et al., 'Inception-v4', AAAI 2017, figures 3 to 9"


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Feature maps of one sample, and the layers that make them."""

    layers: tuple[str, ...]
    channels: int
    size: tuple[int, int]  # height, width

    @property
    def numel(self) -> int:
        return self.channels * self.size[0] * self.size[1]


@dataclass
class Builder:
    """Layers in the order in which they are added, for `batch` samples."""

    batch: int
    layers: list[Layer] = field(default_factory=list)

    def conv(
        self,
        maps: Maps,
        name: str,
        out: int,
        kernel: int | Kernel,
        stride: int = 1,
        same: bool = True,
        norm: str = "",
        plus: Maps | None = None,
    ) -> Maps:
        """Add a convolution, its normalisation `norm` or bias, and its rectifier.

        same: padded so that stride 1 keeps the size; otherwise not padded at all. plus: maps that
        are added before the rectifier.
        """
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        size = _shrunk(maps.size, sides, stride, same)
        weight = Tensor(name=f"{name}.weight", shape=(out, maps.channels, *sides))
        made = Maps(layers=(name,), channels=out, size=size)
        if plus is not None:
            maps = replace(maps, layers=tuple(dict.fromkeys(maps.layers + plus.layers)))
        self._add(name, maps, made, weight, 2.0 * weight.numel * size[0] * size[1], norm)
        return made

    def dense(self, maps: Maps, name: str, out: int) -> Maps:
        """Add a matrix and its bias behind all feature maps."""
        weight = Tensor(name=f"{name}.weight", shape=(out, maps.numel))
        made = Maps(layers=(name,), channels=out, size=(1, 1))
        self._add(name, maps, made, weight, 2.0 * weight.numel, "")
        return made

    def _add(
        self, name: str, maps: Maps, made: Maps, weight: Tensor, flops: float, norm: str
    ) -> None:
        tensors = [weight]
        if norm:
            tensors += [
                Tensor(name=f"{norm}.{x}", shape=(made.channels,)) for x in ("weight", "bias")
            ]
        else:
            tensors.append(Tensor(name=f"{name}.bias", shape=(made.channels,)))
        passes = 6 if norm else 3  # over the output: written, normalised, rectified
        moved = 4.0 * (weight.numel + self.batch * (maps.numel + passes * made.numel))
        self.layers.append(
            Layer(
                name=name,
                after=maps.layers,
                tensors=tuple(tensors),
                forward_flops=self.batch * flops,
                backward_flops=2 * self.batch * flops,
                forward_bytes=moved,
                backward_bytes=2 * moved,
                activation=4.0 * self.batch * made.numel * (2 if norm else 1),
            )
        )

    def graph(self, name: str, source: str, batch: str) -> Net:
        """Return the net; `batch` says where the number of samples comes from."""
        return Net(
            name=name,
            layers=tuple(self.layers),
            batch=self.batch,
            source=f"{source}; {NOTE}; {batch}",
        )


def _shrunk(size: tuple[int, int], kernel: Kernel, stride: int, same: bool) -> tuple[int, int]:
    """Return height and width of the output of a window."""
    lost = (0, 0) if same else (kernel[0] - 1, kernel[1] - 1)
    return (size[0] - lost[0] - 1) // stride + 1, (size[1] - lost[1] - 1) // stride + 1


def pooled(maps: Maps, kernel: int, stride: int, same: bool = False) -> Maps:
    """Return the maps behind a pooling window."""
    return replace(maps, size=_shrunk(maps.size, (kernel, kernel), stride, same))


def joined(branches: Iterable[Maps]) -> Maps:
    """Concatenate the channels of all branches."""
    several = list(branches)
    layers = tuple(dict.fromkeys(name for maps in several for name in maps.layers))
    return replace(several[0], layers=layers, channels=sum(maps.channels for maps in several))


def _image(side: int) -> Maps:
    return Maps(layers=(), channels=3, size=(side, side))


def vgg19() -> Net:
    """VGG-19, names as in torchvision: 143,667,240 parameters."""
    net, maps, place = Builder(batch=64), _image(224), 0
    for channels, repeats in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(repeats):
            maps = net.conv(maps, f"features.{place}", channels, 3)
            place += 2
        maps, place = pooled(maps, 2, 2), place + 1
    for place, out in ((0, 4096), (3, 4096), (6, 1000)):
        maps = net.dense(maps, f"classifier.{place}", out)
    return net.graph("vgg19", VGG, "batch 64 per rank: 256 on 4 devices, as in the paper")


def wide_resnet101() -> Net:
    """WideResNet-101-2, names as in torchvision: 126,886,696 parameters."""
    net = Builder(batch=32)
    maps = net.conv(_image(224), "conv1", 64, 7, 2, norm="bn1")
    maps = pooled(maps, 3, 2, same=True)
    for stage, (blocks, width) in enumerate(((3, 128), (4, 256), (23, 512), (3, 1024)), start=1):
        for block in range(blocks):
            at, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            inner = net.conv(maps, f"{at}.conv1", width, 1, norm=f"{at}.bn1")
            inner = net.conv(inner, f"{at}.conv2", width, 3, stride, norm=f"{at}.bn2")
            if block == 0:
                side = f"{at}.downsample"
                maps = net.conv(maps, f"{side}.0", 2 * width, 1, stride, norm=f"{side}.1")
            maps = net.conv(inner, f"{at}.conv3", 2 * width, 1, norm=f"{at}.bn3", plus=maps)
    net.dense(replace(maps, size=(1, 1)), "fc", 1000)
    return net.graph("wide-resnet101", WIDE, "batch 32 per rank: assumption")


def resnet32() -> Net:
    """ResNet-32 for 32 x 32 images: 464,154 parameters."""
    net = Builder(batch=64)
    maps = net.conv(_image(32), "conv1", 16, 3, norm="bn1")
    for stage, width in enumerate((16, 32, 64), start=1):
        for block in range(5):
            at, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            inner = net.conv(maps, f"{at}.conv1", width, 3, stride, norm=f"{at}.bn1")
            # If sizes differ, the shortcut takes every second place and adds zero channels.
            maps = net.conv(inner, f"{at}.conv2", width, 3, norm=f"{at}.bn2", plus=maps)
    net.dense(replace(maps, size=(1, 1)), "fc", 10)
    return net.graph("resnet32", RESNET, "batch 64 per rank: 128 on 2 devices, as in the paper")


Branch = Sequence[tuple[int, int | Kernel]]  # channels and kernel of each convolution

TOP, SIDE = (1, 7), (7, 1)
BLOCK_A: Sequence[Branch] = (((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)))
BLOCK_B: Sequence[Branch] = (
    ((384, 1),),
    ((192, 1), (224, TOP), (256, SIDE)),
    ((192, 1), (192, SIDE), (224, TOP), (224, SIDE), (256, TOP)),
)


def inception_v4() -> Net:
    """Inception-v4: 42,679,816 parameters."""
    net = Builder(batch=32)
    maps = _stem(net, _image(299))
    for i in range(4):
        maps = _mixed(net, maps, f"inception_a.{i}", BLOCK_A, 96)
    at, small = "reduction_a", pooled(maps, 3, 2)
    long = _branch(net, maps, f"{at}.1", ((192, 1), (224, 3)))
    maps = joined([_halved(net, maps, f"{at}.0", 384), _halved(net, long, f"{at}.1.2", 256), small])
    for i in range(7):
        maps = _mixed(net, maps, f"inception_b.{i}", BLOCK_B, 128)
    at, small = "reduction_b", pooled(maps, 3, 2)
    short = _branch(net, maps, f"{at}.0", ((192, 1),))
    long = _branch(net, maps, f"{at}.1", ((256, 1), (256, TOP), (320, SIDE)))
    maps = joined(
        [_halved(net, short, f"{at}.0.1", 192), _halved(net, long, f"{at}.1.3", 320), small]
    )
    for i in range(3):
        maps = _mixed_c(net, maps, f"inception_c.{i}")
    net.dense(replace(maps, size=(1, 1)), "fc", 1000)
    return net.graph("inception-v4", INCEPTION, "batch 32 per rank: assumption")


def _halved(net: Builder, maps: Maps, name: str, out: int) -> Maps:
    """Add a 3 x 3 convolution of stride 2, not padded."""
    return net.conv(maps, name, out, 3, 2, same=False, norm=f"{name}.bn")


def _branch(net: Builder, maps: Maps, name: str, convolutions: Branch) -> Maps:
    for i, (out, kernel) in enumerate(convolutions):
        maps = net.conv(maps, f"{name}.{i}", out, kernel, norm=f"{name}.{i}.bn")
    return maps


def _stem(net: Builder, maps: Maps) -> Maps:
    maps = _halved(net, maps, "stem.0", 32)
    maps = net.conv(maps, "stem.1", 32, 3, same=False, norm="stem.1.bn")
    maps = net.conv(maps, "stem.2", 64, 3, norm="stem.2.bn")
    maps = joined([pooled(maps, 3, 2), _halved(net, maps, "stem.3", 96)])
    sides: Sequence[Branch] = (((64, 1),), ((64, 1), (64, TOP), (64, SIDE)))
    ends = []
    for i, side in enumerate(sides):
        name = f"stem.4.{i}"
        end = _branch(net, maps, name, side)
        last = f"{name}.{len(side)}"
        ends.append(net.conv(end, last, 96, 3, same=False, norm=f"{last}.bn"))
    maps = joined(ends)
    return joined([_halved(net, maps, "stem.5", 192), pooled(maps, 3, 2)])


def _mixed(net: Builder, maps: Maps, name: str, branches: Sequence[Branch], last: int) -> Maps:
    """Add branches side by side, the last of them after an average over 3 x 3."""
    every = [*branches, ((last, 1),)]
    return joined(_branch(net, maps, f"{name}.{i}", one) for i, one in enumerate(every))


def _mixed_c(net: Builder, maps: Maps, name: str) -> Maps:
    """Add block C, in which two branches end in two convolutions each."""
    ends = [_branch(net, maps, f"{name}.0", ((256, 1),))]
    forks: Sequence[Branch] = (((384, 1),), ((384, 1), (448, (3, 1)), (512, (1, 3))))
    for i, fork in enumerate(forks, start=1):
        inner = _branch(net, maps, f"{name}.{i}", fork)
        for end, kernel in (("a", (1, 3)), ("b", (3, 1))):
            at = f"{name}.{i}.{end}"
            ends.append(net.conv(inner, at, 256, kernel, norm=f"{at}.bn"))
    return joined([*ends, _branch(net, maps, f"{name}.3", ((256, 1),))])
