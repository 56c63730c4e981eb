"""Records what a checkout predicts and compares two records: proof that nothing has changed.

    python tests/unchanged.py record now.json [--tree CHECKOUT] [--traces FOLDER]
    python tests/unchanged.py compare tests/predictions-0.1.json now.json

Only the command line of commsched is used, so that any version can be recorded.

Recorded are the plans under traces/, plans rebuilt from its tables of validation and convergence,
the rows and trends of `reproduce`, and the plans, simulations and prices of the lists below. All
planners are there: without --time-limit, `best` ends where nothing helps and draws nothing.
A validation table names no machine file: the calibrated testbed of traces/convergence stands for
every fabric between hosts, the demo's machine for shared memory, and tensors stay dense. A
convergence table holds no net: resnet32 stands for each of its nets. Left out are times that
`reproduce` measures, the operations of `compare`, hashes, sources and warnings.
"""

import argparse
import importlib.util
import json
import math
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = 5  # of a simulation whose line does not say "@ STEPS"
DRAWN = 8  # ranks whose spans are counted
LISTED = 40  # launches of a plan up to which each has a line of its own
FEW = 12  # launches up to which the operations of each are counted apart, not by method
DIGITS = 15  # significant, of a recorded number
RELATIVE = 1e-9  # numbers that differ by less are equal
# ... and so are numbers whose difference is below the noise of differences of clock times, s, and
# of the microseconds of a timeline file, which have three decimals.
NOISE = {"_ms": 1e-9, "_us": 2e-3, "": 1e-14}
IGNORED = {"format", "hash", "plan", "plan_hash", "source", "version", "warnings"}
# Numbers of a step that 0.2 defines anew (docs/glossary.md); 0.1 counted a timeline's last step.
REDEFINED = {
    *("iteration_seconds", "mean_step_seconds", "iteration_p10", "iteration_p90"),
    *("held_out_errors", "exposed_seconds", "hidden_seconds", "bubble_seconds", "steps"),
    *("bytes_per_rank_and_step", "critical_path_seconds_per_step", "activations_known"),
    *("iteration", "prediction_interval", "why", "exposed_communication", "hidden_communication"),
    *("streams", "clock_uncertainty_us"),
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SHARED = ("shared", "gpu")  # fabrics of the validation table that have no network

NETS = """
alexnet bert-base deepfm gpt2 inception-v4 lm1b lstm nmt resnet101 resnet32 resnet50 vgg16 vgg19
wide-resnet101
"""
MACHINES = """
--machine p3dn.24xlarge --planner ddp-25mb
--machine comet --planner horovod-64mb --jitter 0.1
--machine localhost --lanes 2 --planner ddp-25mb --param overlap=backward
"""
PLANNERS = """
all-coo all-fft all-qsgd all-topk best bytescheduler ddp-25mb espresso greedy hipress horovod-64mb
per-tensor
"""
CODECS = "fp16,topk:0.01,qsgd:4,fft:0.15"
# NET --machine MACHINE of a plan by every planner, allowed codecs last.
MEETINGS = f"""
lstm --machine a100-4xhdr200 --allow {CODECS}
alexnet --machine comet --allow fp16,topk:0.01,qsgd,fft
vgg16 --machine p3.16xlarge --nodes 2 --allow {CODECS}
resnet32 --machine traces/demo/machine.json --allow {CODECS}
laws.json --machine traces/convergence/machine.json --bucket 1 --allow {CODECS}
laws.json --machine uneven.json --allow {CODECS} --jitter 0.1
"""
PLANS = """
resnet50 --machine comet
resnet50 --machine comet --allow fp16,topk:0.01
resnet50 --machine comet --lossless --seed 3
resnet50 --machine comet --jitter 0.1
resnet50 --machine comet --bucket 10 --force fc.weight=ring+fp16
resnet50 --machine comet --max-error 0.1 --allow fp16,topk:0.01,qsgd:4
resnet50 --machine comet --max-error 0.5 --allow-small --allow topk:0.1
resnet50 --machine comet --memory 0.5
resnet50 --machine comet --planner per-tensor
resnet50 --machine comet --planner hipress --allow fp16,topk:0.01
resnet50 --machine comet --planner ddp-25mb --refresh 2 --sum
resnet50 --machine comet --planner ddp-25mb --later 1=zen --later 3=hitopk:0.01
resnet50 --machine comet --planner ddp-25mb --param overlap=backward --param optimizer=adam
resnet50 --machine comet --planner ddp-25mb --param encode=communication --force fc.weight=zen
resnet50 --machine comet --planner ddp-25mb --scale 0.5 --stretch 2 --jitter 0.1 --seed 7 @ 12
resnet50 --machine localhost
resnet50 --machine localhost --lanes 2 --allow fp16 --planner greedy
resnet50 --machine traces/demo/machine.json --planner greedy --scale 0.25 --stretch 6
resnet50 --machine traces/demo/machine.json --planner greedy --scale 0.25 --stretch 6 --jitter 0.1
resnet50 --machine traces/demo/machine.json --allow fp16
resnet50 --machine traces/convergence/machine.json --planner ddp-25mb --jitter 0.1
vgg16 --machine p3dn.24xlarge --nodes 1 --lanes 8 --planner greedy
vgg16 --machine p3dn.24xlarge --nodes 8 --lanes 1 --planner greedy --allow fp16
vgg16 --machine p3dn.24xlarge --nodes 2 --lanes 4 --planner greedy --jitter 0.1
vgg16 --machine p3dn.24xlarge --nodes 4 --lanes 2
vgg16 --machine h100-8x400 --planner ddp-25mb --jitter 0.1
bert-base --machine p3dn.24xlarge --nodes 2 --planner greedy --allow fp16
gpt3-1.3b --machine summit --planner horovod-64mb
nmt --machine comet
deepfm --machine p3.16xlarge --nodes 2
lm1b --machine comet --allow topk:0.01
nmt --machine uneven.json --planner greedy
alexnet --machine uneven.json --planner espresso --allow fp16
inception-v4 --machine h100-8x400 --nodes 2 --planner greedy
wide-resnet101 --machine summit --nodes 2 --planner bytescheduler
laws.json --machine p3.16xlarge --nodes 4 --planner greedy
laws.json --machine comet --jitter 0.1
"""
# By every method, a step each: NET --machine MACHINE --planner NAME.
EVERY = """
laws.json --machine uneven.json --planner ddp-25mb
laws.json --machine comet --nodes 2 --lanes 2 --planner ddp-25mb
laws.json --machine traces/convergence/machine.json --planner ddp-25mb --bucket 2
"""
METHODS = """
native+dense ring+dense doubling+dense halving-doubling+dense tree+dense
ring+fp16 ring+bf16 ring+fp8:e4m3 all-gather+coo all-gather-direct+coo all-gather+elias
all-gather+bitmap all-gather+block zen dsar omnireduce sparse-ps node-union gtopk:0.01 ok-topk:0.01
hitopk:0.01 powersgd:2 all-gather+quant:8 all-gather+fft:0.15 all-gather+topk:0.01 all-gather+qsgd:4
all-gather+terngrad all-gather+onebit all-gather+sign:vote ring+randomk:0.01
"""
STRATEGIES = """
resnet50 --machine a100-4xhdr200 --strategy daso
  --param batches=2 --param epochs=6 --param warmup=1 --param cooldown=1 @ 12
vgg16 --machine p3dn.24xlarge --nodes 2 --strategy daso --param gs=2 --param wait=2 --jitter 0.1
vgg16 --machine comet --strategy daso --param warmup=0 --param blocking=dense --param max_gs=4
  @ 8
resnet32 --machine traces/convergence/machine.json --strategy daso --bucket 1 --jitter 0.1
resnet32 --machine traces/convergence/machine.json --strategy shadow --bucket 1 --jitter 0.1
resnet50 --machine p3dn.24xlarge --nodes 2 --strategy shadow
lstm --machine comet --strategy shadow --param every=2 --param lag=0 @ 6
vgg16 --machine comet --strategy shadow --param every=2 --jitter 0.1 @ 8
gpt3-1.3b --machine summit --nodes 2 --strategy gpipe --param stages=6
gpt3-1.3b --machine summit --nodes 2 --strategy 1f1b --param stages=6
gpt3-1.3b --machine summit --nodes 2 --strategy samo --param stages=6
gpt3-1.3b --machine summit --nodes 2 --strategy samo
  --param stages=3 --param pruned=0 --param near=replicas
gpt3-1.3b --machine summit --nodes 2 --strategy local --param stages=6 --param microbatches=8
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy gpipe --param stages=4 --param recompute=2
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy 1f1b --param stages=4 --jitter 0.1
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy 1f1b --param stages=8 --param message_bytes=1e6
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy samo --param stages=4 --param microbatches=4
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy samo
  --param stages=2 --param pruned=0.5 --jitter 0.1
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy local --param stages=4 --jitter 0.1
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy local --param stages=4 --param variant=overlapping
gpt2 --machine a100-4xhdr200 --nodes 2 --strategy local
  --param stages=8 --param variant=chunked --param chunks=2 --param microbatches=4
resnet50 --machine localhost --strategy gpipe --param stages=2
resnet50 --machine localhost --strategy 1f1b
  --param stages=2 --param microbatches=4 --param recompute=1
resnet50 --machine localhost --strategy local --param stages=2 --param head=0.5
wide-resnet101 --machine comet --strategy 1f1b --param stages=4 --allow fp16
resnet32 --machine traces/convergence/machine.json --strategy gpipe
  --param stages=2 --param microbatches=4 --jitter 0.1
resnet32 --machine traces/convergence/machine.json --strategy 1f1b
  --param stages=2 --param microbatches=4 --jitter 0.1
resnet32 --machine traces/convergence/machine.json --strategy samo
  --param stages=2 --param microbatches=4 --jitter 0.1
resnet32 --machine traces/convergence/machine.json --strategy local
  --param stages=2 --param microbatches=1 --param variant=overlapping --jitter 0.1
"""
PRICES = """
price 1000000 --machine p3dn.24xlarge --density 0.01 --json
price 1000000 --machine comet --density 0.01 --json
price 1000000 --machine traces/convergence/machine.json --density 0.01 --json
price 1000000 --machine uneven.json --density 0.1 --compute 5 --json
price 25000000 --machine a100-4xhdr200 --nodes 2 --lanes 2 --lossless --json
price 25000000 --machine p3dn.24xlarge --strategy daso --param wait=1,2 --compute 40 --json
price 25000000 --machine p3dn.24xlarge --strategy shadow --compute 40 --json
price 2700000000 --machine summit --strategy samo --param pruned=0,0.25,0.9 --json
"""
# Run first, so that what is loaded need not be loaded again for each command.
WARMING = """
plan resnet32 --machine localhost --planner greedy -o plan.json --json
simulate plan.json -o timeline.json --json
price 1000 --machine localhost --json
"""


def laws() -> dict[str, Any]:
    """A small net: a layer for each law of sparsity, a half-precision one, a branch."""
    sparse: dict[str, dict[str, Any]] = {
        "zipf": {"density": 0.05, "rows": 1000},
        "uniform": {"density": 0.01},
        "mask": {"density": 0.1},
        "curve": {"density": 0.02, "curve": [[1, 0.02], [4, 0.05]]},
    }
    after = {"mask": ["zipf"], "curve": ["uniform", "mask"]}
    layers: list[dict[str, Any]] = []
    for law, keys in sparse.items():
        tensors: list[dict[str, Any]] = [
            {"name": f"{law}.weight", "shape": [1000, 256], "sparsity": {"law": law, **keys}},
            {"name": f"{law}.bias", "shape": [256]},
        ]
        layers.append({"name": law, "forward_us": 900.0, "backward_us": 1700.0, "tensors": tensors})
        layers[-1] |= {"after": after[law]} if law in after else {}
    half = {"name": "half.weight", "shape": [512, 512], "dtype": "float16"}
    work = {"forward_flops": 1e9, "backward_flops": 2e9, "activation_bytes": 1e6}
    layers.append({"name": "half", "tensors": [half], **work})
    return {"format": "commsched-net/1", "name": "laws", "source": "assumption", "layers": layers}


def uneven() -> dict[str, Any]:
    """A machine whose nodes differ, with every key that shapes a prediction."""

    def link(latency: float, rate: float) -> dict[str, Any]:
        speed = {"latency_us": latency, "overhead_us": 1.0, "bandwidth_GBps": rate}
        return {**speed, "source": "assumption"}

    nic = {"per_node": 1, "bandwidth_GBps": "2.5 GB/s", "turn_B": 65536.0, "source": "assumption"}
    device = {"name": "d", "memory_GB": 16.0, "bandwidth_GBps": 400.0, "tflops": 5.0}
    times = {"startup_us": 9.0, "restart_us": 3.0, "handover_us": 2.0, "burst_us": 50.0}
    shares = {"jitter": 0.05, "coding_jitter": 0.1, "alone": 0.8, "slowed": 1.2, "overlap": 0.9}
    held_out = [
        {"name": f"h{number}", "predicted_us": 100.0, "measured_us": measured}
        for number, measured in enumerate((90.0, 104.0, 97.0, 120.0))
    ]
    return {
        "format": "commsched-machine/1",
        "name": "uneven",
        "source": "assumption",
        "node_of_rank": [0, 0, 0, 1, 1, 2],
        "links": {"inside": link(2.0, 20.0), "between": link(10.0, 2.0)},
        "nic": nic,
        "overrides": [{"node": 2, "between": link(30.0, 1.0)}],
        "device": {**device, "source": "assumption"},
        "cores": 2,
        "held_out": held_out,
        **times,
        **shares,
    }


class Checkout:
    """Runs commands of a checkout, in a folder of its own, by a process that forks for each."""

    def __init__(self, tree: Path, traces: Path, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0  # of a core, that commands have taken
        (folder / "traces").symlink_to(traces.resolve())
        for name, data in {"laws.json": laws(), "uneven.json": uneven()}.items():
            (folder / name).write_text(json.dumps(data))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "serve"],
            cwd=folder,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": str(tree.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loaded = self._answer()
        if not Path(loaded).is_relative_to(tree.resolve()):
            raise SystemExit(f"commsched was loaded from {loaded}, not from {tree}")

    def run(self, command: str) -> Any:
        """Run `commsched COMMAND`; what it prints as JSON, None where that is not JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(shlex.split(command)) + "\n")
        self._process.stdin.flush()
        words = self._answer().split()
        status, self.seconds = int(words[0]), self.seconds + float(words[1])
        output, errors = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        if status:
            last = (errors.strip().splitlines() or [""])[-1]
            print(f"exit {status}: commsched {command}\n  {last}", file=sys.stderr, flush=True)
        try:
            return json.loads(output)
        except ValueError:
            return None

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("the process that runs commsched has ended")
        return line


def serve() -> None:
    """Read a command per line, run it in a fork, answer with its status and seconds of a core."""
    sys.path.pop(0)  # the folder of this script, which `python -m` would not have
    answers = os.dup(1)
    found = importlib.util.find_spec("commsched")
    os.write(answers, f"{found.origin if found else 'nowhere'}\n".encode())
    _redirect()
    json.JSONEncoder.default = _item  # type: ignore[assignment, method-assign]
    for command in lines(WARMING):
        _invoke(command.split())
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _redirect()
            os._exit(_invoke(json.loads(line)))
        _, status, used = os.wait4(pid, 0)
        spent = used.ru_utime + used.ru_stime
        os.write(answers, f"{os.waitstatus_to_exitcode(status)} {spent}\n".encode())


def _item(_: json.JSONEncoder, o: Any) -> Any:
    """Let json write a NumPy scalar: some reports of 0.1 hold a bool of NumPy, and fail."""
    if hasattr(o, "item"):
        return o.item()
    raise TypeError(f"{type(o).__name__} is not JSON")


def _redirect() -> None:
    """Write to the files stdout and stderr from here on."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)


def _invoke(words: Sequence[str]) -> int:
    """Do what `python -m commsched WORDS` does in this process; the exit status."""
    sys.argv = ["commsched", *words]
    status = 0
    try:
        runpy.run_module("commsched", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def recorded(checkout: Checkout) -> Iterator[tuple[str, Any]]:
    """Everything that is recorded, by command."""
    yield from kept(checkout)
    nets = checkout.run("models --json")
    yield "models", nets
    rebuilt = [*validated(checkout, nets["nets"]), *converged(checkout)]
    listed = [f"{net} {line}" for line in lines(MACHINES) for net in NETS.split()]
    listed += [f"{line} --planner {name}" for line in lines(MEETINGS) for name in PLANNERS.split()]
    listed += [_each_step(line, METHODS.split()) for line in lines(EVERY)]
    for line in (*rebuilt, *listed, *lines(PLANS), *lines(STRATEGIES)):
        yield f"plan {line}", planned(checkout, line)
    for line in lines(PRICES):
        found = checkout.run(line) or {}
        if "methods" in found:
            found["methods"] = {each.pop("method"): each for each in found["methods"]}
        yield line, found
    yield "reproduce", reproduced(checkout)


def lines(text: str) -> list[str]:
    """Split a list; a line that begins with spaces belongs to the one before."""
    return text.strip().replace("\n  ", " ").splitlines()


def kept(checkout: Checkout) -> Iterator[tuple[str, Any]]:
    """Every plan that is, or lies in, a file under traces/; then what needs a measured timeline."""
    folder = checkout.folder / "traces"
    for path in sorted(folder.rglob("*.json")):
        for place, plan in plans(json.loads(path.read_text())):
            (checkout.folder / "plan.json").write_text(json.dumps(plan))
            summary = checkout.run("show plan.json --json")
            name = f"{path.relative_to(checkout.folder)}{place}"
            yield f"simulate {name}", described(checkout, summary, STEPS)
    demo = "traces/demo/plan.json --steps 6 --replay traces/demo/measured.json --json"
    yield f"simulate {demo}", checkout.run(f"simulate {demo}")
    both = "compare traces/demo/predicted.json traces/demo/measured.json --json"
    found = checkout.run(both) or {}
    found.get("why", {}).pop("operations", None)
    yield both, {key: value for key, value in found.items() if not isinstance(value, list)}


def plans(data: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Plans in a file's data, each with its place."""
    if isinstance(data, dict):
        if {"launches", "machine", "graph"} <= data.keys():
            yield place, data
            return
        data = list(data.items())
    elif isinstance(data, list):
        data = list(enumerate(data))
    else:
        return
    for key, value in data:
        yield from plans(value, f"{place}/{key}")


def validated(checkout: Checkout, nets: list[dict[str, Any]]) -> Iterator[str]:
    """Plans as in the validation tables: for each net every method that a row has, a step each."""
    whole = {net["name"]: net["gradient_bytes"] for net in nets}
    methods: dict[tuple[str, str], dict[str, float]] = {}
    for path in sorted((checkout.folder / "traces/validation").glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            place = "demo" if row["fabric"] in SHARED else "convergence"
            found = methods.setdefault((place, row["net"]), {})
            found.setdefault(row["method"], row["nbytes"])
    for (place, net), found in methods.items():
        nbytes = next(iter(found.values()))
        sizes = f"--scale {nbytes / whole[net]:.6g} --bucket {nbytes / 8e6:.6g}"
        line = f"{net} --machine traces/{place}/machine.json --planner ddp-25mb {sizes}"
        yield _each_step(line, list(found))


def converged(checkout: Checkout) -> Iterator[str]:
    """A plan as in the convergence tables: every method of a plain case, a step each."""
    methods: dict[str, None] = {}
    for path in sorted((checkout.folder / "traces/convergence").glob("*/table.json")):
        for case in json.loads(path.read_text())["cases"]:
            parts = case["method"].split(", ") if case["strategy"] == "sync" else []
            methods |= {part.split()[-1]: None for part in parts if "broadcast" not in part}
    line = "resnet32 --machine traces/convergence/machine.json --planner ddp-25mb --bucket 0.3"
    yield _each_step(f"{line} --refresh 10 --jitter 0.1", list(methods))


def _each_step(line: str, methods: Sequence[str]) -> str:
    """The plan, whose step k goes by the k-th method."""
    later = " ".join(f"--later {step}={method}" for step, method in enumerate(methods, 1))
    return f"{line} {later} @ {len(methods) + 2}"


def planned(checkout: Checkout, line: str) -> dict[str, Any]:
    """Plan what a line says, and simulate that plan."""
    words, _, steps = line.partition(" @ ")
    (checkout.folder / "plan.json").unlink(missing_ok=True)
    summary = checkout.run(f"plan {words} -o plan.json --json")
    if summary and summary.get("compute", {}).get("choice") == "scaled":  # 0.1 scaled no seconds
        summary = checkout.run(f"plan {words} --compute measured -o plan.json --json")
    return described(checkout, summary, int(steps or STEPS))


def described(checkout: Checkout, summary: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Describe plan.json, of which a summary is known, and its simulation."""
    if summary is None:
        return {"failed": "plan"}
    timeline = checkout.folder / "timeline.json"
    timeline.unlink(missing_ok=True)
    options = f"--steps {steps} --ranks {DRAWN} -o timeline.json --json"
    report = checkout.run(f"simulate plan.json {options}")
    few = len(summary["launches"]) <= FEW
    kinds = {each["launch"]: each["launch" if few else "method"] for each in summary["launches"]}
    found = {"planned": brief(summary, json.loads((checkout.folder / "plan.json").read_text()))}
    if report is not None:
        found["report"] = report
    if timeline.exists():
        found["timeline_us"] = totals(json.loads(timeline.read_text()), kinds, steps)
    return found


def brief(summary: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """A plan: its launches in order, as one line each or, if they are many, as counts."""
    launches: list[dict[str, Any]] = summary.pop("launches")
    pieces = [launch.get("pieces") for launch in plan["launches"]]
    for key in ("seconds", "runner_up_seconds", "margin_seconds", "opposite_margin_seconds"):
        summary[key] = math.fsum(launch.pop(key) or 0.0 for launch in launches)
    told = [
        " ".join(map(str, [*filter(None, launch.values()), "pieces", _digest(piece)]))
        for launch, piece in zip(launches, pieces, strict=True)
    ]
    if len(told) <= LISTED:
        return summary | {"launches": told}
    counts = Counter(launch["method"] for launch in launches)
    return summary | {"launches": len(told), "methods": counts, "all": _digest(told)}


def _digest(data: object) -> str:
    return f"{zlib.crc32(json.dumps(data).encode()):08x}"


def totals(timeline: dict[str, Any], kinds: dict[str, str], steps: int) -> dict[str, list[float]]:
    """Operation -> spans, mean start, duration and waiting in us, and mean bytes, of some steps.

    `kinds` says under which name the operations of a launch are counted; others, such as forward,
    are counted together.
    """
    sums: dict[str, list[float]] = {}
    for event in timeline["traceEvents"]:
        if event["ph"] != "X" or event["args"]["step"] >= steps:
            continue
        args, name = event["args"], event["name"].split("/")
        ends = [end for end in range(1, len(name)) if "/".join(name[:end]) in kinds]
        kind = name[0]
        if ends:
            kind = "/".join([kinds["/".join(name[: ends[-1]])], *name[ends[-1] :]])
        values = (event["ts"], event["dur"], args.get("waited_us", 0.0), args.get("nbytes", 0.0))
        found = sums.setdefault(kind, [0.0] * 5)
        for place, value in enumerate((1, *values)):
            found[place] += value
    return {k: [s[0], *(value / s[0] for value in s[1:])] for k, s in sorted(sums.items())}


def reproduced(checkout: Checkout) -> dict[str, Any]:
    """Rows and trends of every paper, without the times that are measured."""
    found = {}
    for paper in checkout.run("reproduce --json") or ():
        for row in paper["rows"]:
            if row["measured"]:
                for key in ("predicted", "error", "met"):
                    row.pop(key, None)
        found[paper.pop("name")] = paper
    return found


def pruned(data: Any) -> Any:
    """The data without what is never compared, numbers rounded."""
    if isinstance(data, dict):
        return {key: pruned(value) for key, value in data.items() if key not in IGNORED}
    if isinstance(data, list):
        return [pruned(value) for value in data]
    return float(f"{data:.{DIGITS}g}") if isinstance(data, float) else data


def record(path: Path, tree: Path, traces: Path) -> None:
    """Write what a checkout predicts, a line per command."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(tree, traces, Path(folder))
        for number, (command, data) in enumerate(recorded(checkout), 1):
            assert command not in found, f"{command} is listed twice"
            found[command] = json.dumps({command: pruned(data)}, separators=(",", ":"))[1:-1]
            said = f"[{number}, {checkout.seconds:.0f} s of a core] {command[:80]}"
            print(said, file=sys.stderr, flush=True)
        checkout.close()
    rough = path.with_name(f"{path.name}.{os.getpid()}")
    rough.write_text("{\n" + ",\n".join(found.values()) + "\n}\n")
    rough.replace(path)


def flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by path."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in pairs:
        if key in IGNORED | REDEFINED:
            continue
        place = f"{path} / {key}" if path else str(key)
        if isinstance(value, dict | list):
            yield from flat(value, place)
        else:
            yield place, value


def difference(path: str, old: Any, new: Any) -> float:
    """Relative difference of two leaves; 0 where they count as equal, infinite of a text."""
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
    if old == new or not numbers:
        return 0.0 if old == new else math.inf
    noise = next(noise for unit, noise in NOISE.items() if _has_unit(path, unit))
    apart, size = abs(old - new), max(abs(old), abs(new))
    return 0.0 if apart <= max(RELATIVE * size, noise) else apart / size


def _has_unit(path: str, unit: str) -> bool:
    return not unit or any(key.endswith(unit) for key in path.split(" / "))


def compare(first: Path, second: Path) -> int:
    """Print what differs; 1 where something does, or is only in the first record."""
    old, new = (dict(flat(json.loads(path.read_text()))) for path in (first, second))
    both = [path for path in old if path in new]
    apart = {path: difference(path, old[path], new[path]) for path in both}
    differing = {path: far for path, far in apart.items() if far}
    gone, added = ([p for p in a if p not in b] for a, b in ((old, new), (new, old)))
    for path, far in sorted(differing.items(), key=lambda pair: -pair[1]):
        print(f"{path}: {old[path]!r} -> {new[path]!r}  ({far:.3g})")
    for path in gone:
        print(f"only in {first}: {path}: {old[path]!r}")
    for path in added:
        print(f"only in {second}: {path}: {new[path]!r}")
    print(
        f"{len(both) - len(differing)} equal, {len(differing)} different,"
        f" {len(gone)} only in {first}, {len(added)} only in {second}"
    )
    return int(bool(differing or gone))


def main() -> int:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("record", help="write what a checkout predicts")
    p.add_argument("file", type=Path)
    p.add_argument("--tree", type=Path, default=ROOT, help="checkout; default: this one")
    p.add_argument("--traces", type=Path, help="folder of plans and tables; default: the tree's")
    p = commands.add_parser("compare", help="print what differs between two records")
    p.add_argument("first", type=Path)
    p.add_argument("second", type=Path)
    commands.add_parser("serve", help="run commands of a checkout; 'record' starts this")
    args = parser.parse_args()
    if args.command == "serve":
        serve()
    elif args.command == "record":
        record(args.file, args.tree, args.traces or args.tree / "traces")
    else:
        return compare(args.first, args.second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
