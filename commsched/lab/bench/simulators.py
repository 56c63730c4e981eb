"""`bench simulators`: other simulators' times for our exports, beside our own predictions.

The user builds the programs; each gets the links of one machine.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from commsched import files
from commsched.errors import CommschedError
from commsched.exchange.pair import Pair
from commsched.exchange.registry import legal_methods
from commsched.interchange.export import EXPORTS
from commsched.interchange.tasks import Task, tasks
from commsched.lab.bench.row import BenchRow
from commsched.machine.model import Device, Link, Machine, placement
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.request import Request
from commsched.simulate.engine import simulate

WHY = "assumed: LogGOPSim takes whole ns, and whole ns per byte"
LINK = Link(latency=10e-6, overhead=1e-6, per_byte=1e-9, source=WHY)
NODES, LANES = 2, 4
LAYERS, NUMEL = 4, 2**22  # layers of a net, and float32 elements of each: 16.8 MB
BUCKETS = {"one bucket": 1e12, "a bucket per layer": 1.0}  # B
LIMIT = 600.0  # s of one simulation
GIBI = 2**30  # B that ASTRA-sim's analytical network counts as a GB
COLLECTIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # ASTRA-sim's keys
SYSTEM = {
    "scheduling-policy": "FIFO",
    "endpoint-delay": 0,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
}
BAR_ASTRA, BAR_LOGGOPS = 0.005, 0.05

Runs = Callable[[Sequence[Sequence[Task]], Path], float]  # tasks of ranks, folder -> s


def rows(astra_sim: Path | None, loggopsim: Path | None) -> Iterator[BenchRow]:
    """Simulate every dense all-reduce with the programs that the user has given."""
    peers: dict[str, tuple[Runs, float]] = {}
    if astra_sim is not None:
        peers["ASTRA-sim"] = (lambda made, folder: _astra(astra_sim, made, folder), BAR_ASTRA)
    if loggopsim is not None:
        peers["LogGOPSim"] = (lambda made, folder: _loggops(loggopsim, made, folder), BAR_LOGGOPS)
    if not peers:
        raise CommschedError("give --astra-sim FILE or --loggopsim FILE, a program that you built")
    for what, plan in plans():
        ours = max(float(placed.end.max()) for placed in simulate(plan, 1).placed)
        made = tasks(plan)
        for name, (run, bar) in peers.items():
            with TemporaryDirectory() as folder:
                theirs = run(made, Path(folder))
            told = f"{name} {theirs * 1e3:.3f} ms, {theirs / ours - 1:+.2%}"
            yield BenchRow(what, ours, told, f"within {bar:.1%}")


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield plans of every dense all-reduce: gradients in one bucket, and a bucket per layer."""
    request = Request(net=_net(), machine=_machine())
    for method in legal_methods(request.machine.everyone):
        if isinstance(method, Pair) and method.codec.name == "dense":
            for said, limit in BUCKETS.items():
                yield f"{method.name}, {said}", _plan(request, method.name, limit)


def _plan(request: Request, method: str, limit: float) -> Plan:
    return launches(request, buckets(request, limit), lambda each: replace(each, method=method))


def _machine() -> Machine:
    """Return nodes with equal rates inside and between, as the networks of both programs have."""
    return Machine(
        name="flat",
        node_of_rank=placement(NODES, LANES),
        inside=LINK,
        between=LINK,
        nic=None,
        device=Device(name="any", memory=1e11, bandwidth=1e12, flops=1e13, source=WHY),
        jitter=0.0,
        source=WHY,
    )


def _net() -> Net:
    layers = tuple(
        Layer(
            name=f"l{i}",
            after=(f"l{i - 1}",) if i else (),
            forward=10e-3,
            backward=20e-3,
            tensors=(Tensor(name=f"l{i}.weight", shape=(NUMEL,)),),
            activation=0.0,
        )
        for i in range(LAYERS)
    )
    return Net(name="chain", layers=layers, source=WHY)


def _astra(program: Path, made: Sequence[Sequence[Task]], folder: Path) -> float:
    """Run the traces on ASTRA-sim's analytical network; return the s of the last rank."""
    export = EXPORTS["chakra"]
    export.check()
    export.write(made, folder, "plan")
    latency = (LINK.latency + 2 * LINK.overhead) * 1e9
    rate = 1 / LINK.per_byte / GIBI
    settings = {
        "network": f"topology: [ FullyConnected ]\nnpus_count: [ {len(made)} ]\n"
        f"bandwidth: [ {rate} ]\nlatency: [ {latency} ]\n",
        "system": json.dumps({f"{name}-implementation": ["ring"] for name in COLLECTIVE} | SYSTEM),
        "remote-memory": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}),
    }
    words = [str(program), f"--workload-configuration={folder / 'plan'}"]
    for name, text in settings.items():
        path = folder / f"{name}.yml"
        with files.writing(path) as file:
            file.write(text.encode())
        words.append(f"--{name}-configuration={path}")
    return _last(words, folder, re.compile(r"finished, (\d+) cycles"))


def _loggops(program: Path, made: Sequence[Sequence[Task]], folder: Path) -> float:
    """Run the GOAL text on LogGOPSim without rendezvous; return the s of the last rank."""
    (text,) = EXPORTS["goal"].write(made, folder, "plan")
    binary = folder / "plan.bin"
    _output([str(program.with_name("txt2bin")), "-i", str(text), "-o", str(binary)], folder)
    given = {
        "L": LINK.latency * 1e9,
        "o": LINK.overhead * 1e9,
        "g": 0.0,
        "G": LINK.per_byte * 1e9,
        "S": 2**31 - 1,  # longer messages wait for their receiver
    }
    words = [word for key, value in given.items() for word in (f"-{key}", str(round(value)))]
    return _last([str(program), "-f", str(binary), *words], folder, re.compile(r"Host \d+: (\d+)"))


def _last(words: list[str], folder: Path, line: re.Pattern[str]) -> float:
    """Run a program that prints when each rank ends, in ns; return the latest, in s."""
    said = _output(words, folder)
    ends = [int(number) for number in line.findall(said)]
    if not ends:
        raise CommschedError(f"{words[0]}: printed no end of a rank, but {said[-200:]!r}")
    return max(ends) * 1e-9


def _output(words: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(  # ASTRA-sim writes logs to its working folder
            words, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommschedError(f"{words[0]}: cannot be run: {error}") from error
    if done.returncode:
        raise CommschedError(
            f"{words[0]}: ended with status {done.returncode}: {done.stderr.strip()[-200:]!r}"
        )
    return done.stdout
