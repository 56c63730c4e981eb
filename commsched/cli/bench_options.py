"""The options of each benchmark of `commsched bench`."""

from pathlib import Path

from commsched.cli import size
from commsched.cli.machine import SET
from commsched.cli.options import TIMEOUT, Flag, ListOption, Option
from commsched.quantities import DENSITY

JSON = Flag("--json", "print the results as JSON")
DEVICE = Option("--device", "D", "cpu or cuda", default="cpu")
FOLDER = Option("-o --output", "FOLDER", "folder of results and finished cells", Path)
ON_RANKS = (JSON, TIMEOUT)
ON_DEVICES = (*ON_RANKS, DEVICE)
BUFFERS = (*ON_DEVICES, Option("-o --output", "FILE", "JSON file to write", Path))


def quick(what: str) -> Flag:
    """Return the flag --quick, whose help names the smaller benchmark `what`."""
    return Flag("--quick", what)


CODING = (
    Option("--numel", "N", "float32 elements; default: 8388608, 16777216; cuda: 67108864", int),
    Option("--repeats", "N", "number of measured repeats; default: 10", int),
)
CODECS = (
    ListOption("--codec", "NAME", "codec, or all; default: codecs with a required rate"),
    *CODING,
    DEVICE,
    JSON,
    size.FORCE_SIZE,
)
GPU = (*CODING, FOLDER, quick("one net, shorter calibrations"), JSON)
SPARSE = (
    ListOption("--density", "D", "share of non-zeros of a rank; default: 0.1%% to 20%%", DENSITY),
    ListOption("--method", "NAME", "method; default: the best ones"),
    Option(
        "--support",
        "KIND",
        "uniform, zipf or text (rows of tables), top (of a net's gradient); default: uniform",
    ),
    *CODING,
    *ON_RANKS,
    size.FORCE_SIZE,
)
PLANNER = (
    ListOption(
        "--part",
        None,
        "default: all",
        choices=("speed", "optimum", "quality"),
    ),
    Option("--seeds", "FIRST:STOP", "random instances of part optimum; default: 0:300"),
    ListOption("--net", "NAME", "net of part quality; default: all shipped nets"),
    ListOption("--machine", "NAME", "machine of part quality; default: all shipped machines"),
    SET,
    JSON,
)
RUNTIME = (
    ListOption(
        "--part",
        None,
        "default: all",
        choices=("latency", "small", "hidden", "beside"),
    ),
    *ON_RANKS,
)
PEERS = (
    ListOption("--model", "NAME", "resnet18, gpt, lstm or dlrm; default: all"),
    ListOption(
        "--bed",
        "HOSTSxRATE",
        "a rank on each host; default: 2x200mbit, 2x1gbit, 4x200mbit, 4x1gbit",
        choices=("2x200mbit", "2x1gbit", "4x200mbit", "4x1gbit"),
    ),
    Option("--training-seeds", "N", "trainings of each model, for losses", int, 1),
    FOLDER,
    quick("three rounds of two steps, a shorter calibration"),
    JSON,
)
SIMULATORS = (
    Option("--astra-sim", "FILE", "AstraSim_Analytical_Congestion_Unaware that you built", Path),
    Option("--loggopsim", "FILE", "LogGOPSim that you built, with txt2bin beside it", Path),
    JSON,
)
ALONE = (DEVICE, FOLDER, quick("gpu: one net, shorter calibrations"), JSON, TIMEOUT)
