"""The tables of the convergence benchmark: each net, the length of its training, and its cases."""

from dataclasses import dataclass

DENSE = "dense"  # the reference of all other cases
SELECTED = "zen+topk:0.005"  # for an embedding: selects about half of a rank's values
UNPRUNED = "samo-dense"  # SAMO's pipeline without pruning, which is AxoNN
SHARES = (0.25, 0.5, 0.8, 0.9)  # pruned shares of the over-parameterised net
PROMISED = (  # the only cases of some nets
    DENSE,
    "fft:0.15",
    "fft:0.15:forget",
    "topk:0.03125",
    "topk:0.03125:forget",
    "daso",
)


def early_bird(share: float) -> str:
    """Name the case of SAMO whose mask is drawn after a dense warm-up."""
    return f"samo-early:{share:g}"


@dataclass(frozen=True, kw_only=True)
class CaseNet:
    """A net and how long it is trained."""

    name: str
    period: int = 22  # steps between two scores on held-out data: an epoch of the digits
    periods: int = 10
    folds: int = 1  # of five: number of folds that are held out in turn
    rate: float = 0.05  # of SGD and momentum
    adam: float = 0.005  # rate of Adam
    optimizer: str = "momentum"  # of cases that do not need another optimiser
    schedule: str = "constant"  # of the rate
    by_torch: bool = False  # train `cnn` as a PyTorch module by `commsched.torch.attach`
    looked_up: str = ""  # embedding table with cases for its sparse gradient
    batch: int = 64
    lanes: int = 2  # ranks of a host
    stages: int = 0  # of pipelines; 0: no pipeline is trained
    scale: float = 10.0  # factor on the elements of timed nets, so that latency does not dominate
    timed: int = 41  # steps of a case without epochs; the first one is dropped
    only: tuple[str, ...] = ()  # names of cases; empty: all
    tries: int = 3  # seeds of each rate that is tried
    seeds: int = 5  # at most, of each fold
    spared: int = 0  # early-bird masks do not prune tensors of at most this many elements
    pruned: tuple[float, ...] = (0.9,)  # shares that early-bird masks prune

    @property
    def steps(self) -> int:
        """Return the steps of a training."""
        return self.period * self.periods


TABLES = {
    "digits": CaseNet(name="mlp:64:2", folds=5, tries=5),
    # Enough layers for a pipeline of four stages.
    "deep": CaseNet(name="mlp:64:7", folds=5, rate=0.03, stages=4, spared=640),
    # The fewest layers for four stages: three cuts, at the digits' rate.
    "messages": CaseNet(name="mlp:64:3", folds=5, stages=4),
    # The rate falls to 0, so that every curve ends flat.
    "plateau": CaseNet(name="mlp:64:2", folds=5, periods=40, schedule="cosine", only=PROMISED),
    # The blocks have different shapes, so heads of local losses read means.
    "cnn": CaseNet(
        name="cnn:16",
        stages=4,
        only=(*PROMISED, "1f1b", "local-greedy", "local-overlapping", "local-chunked"),
        tries=2,
    ),
    "torch": CaseNet(name="cnn:16", by_torch=True, only=PROMISED, tries=2),
    "eight": CaseNet(
        name="mlp:64:2",
        lanes=4,
        only=(*PROMISED, "qsgd:4", "powersgd:2", "shadow", "daso-gs8"),
        tries=2,
    ),
    # 150 parameters a training sample; masks spare biases, the first and the last layer.
    "wide": CaseNet(
        name="mlp:256:4",
        folds=5,
        adam=0.001,
        stages=2,
        only=(DENSE, "adam", UNPRUNED, "samo", *map(early_bird, SHARES)),
        tries=1,
        spared=64 * 256,
        pruned=SHARES,
    ),
    # 1,300 parameters a training sample.
    "wider": CaseNet(
        name="mlp:512:8",
        folds=2,
        rate=0.01,
        adam=0.0005,
        stages=2,
        only=(DENSE, "adam", UNPRUNED, *map(early_bird, SHARES)),
        tries=1,
        spared=64 * 512,
        pruned=SHARES,
    ),
    # A rank reads 24 words in a step, about 1 % of the rows of its embedding.
    "text": CaseNet(
        name="words:8:2000",
        period=60,
        periods=6,
        rate=0.2,
        adam=0.01,
        batch=32,
        stages=2,
        timed=21,
        tries=2,
        spared=2000,
        looked_up="embedding.weight",
    ),
    # A rank reads 32 words, 1.3 % of the rows, and four ranks 4.1 %, by the law of the words.
    "bigrams": CaseNet(
        name="bigrams:64:2000",
        period=50,
        periods=6,
        rate=1.0,
        batch=128,
        only=(*PROMISED, "zen", SELECTED),
        tries=2,
        looked_up="embedding.weight",
    ),
    "patches": CaseNet(
        name="autoencoder:128:16",
        period=106,
        periods=4,
        rate=0.5,
        only=PROMISED,
        tries=2,
    ),
    # 3.3 million parameters; a training reads only the samples of its steps from the text's 12 MB.
    "gpt": CaseNet(
        name="gpt:256:4:4:sources",
        period=40,
        periods=3,
        rate=0.1,
        adam=0.001,
        optimizer="adam",
        batch=8,
        stages=2,
        only=(*PROMISED, "zen", "local-greedy", "1f1b"),
        tries=1,
        looked_up="embedding.bytes.weight",
    ),
}
