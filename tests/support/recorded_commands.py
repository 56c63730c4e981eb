"""Plans, simulations and prices that tests/unchanged.py records, and the files that they name."""

from collections.abc import Sequence
from typing import Any

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
resnet32 --machine traces/convergence/machine.json --strategy shadow --jitter 0.1
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


def listed_plans() -> list[str]:
    """Lines of the plans to record: NET --machine MACHINE, and options."""
    found = [f"{net} {line}" for line in lines(MACHINES) for net in NETS.split()]
    found += [f"{line} --planner {name}" for line in lines(MEETINGS) for name in PLANNERS.split()]
    found += [each_step(line, METHODS.split()) for line in lines(EVERY)]
    return [*found, *lines(PLANS), *lines(STRATEGIES)]


def each_step(line: str, methods: Sequence[str]) -> str:
    """The plan, whose step k goes by the k-th method."""
    later = " ".join(f"--later {step}={method}" for step, method in enumerate(methods, 1))
    return f"{line} {later} @ {len(methods) + 2}"


def lines(text: str) -> list[str]:
    """Split a list; a line that begins with spaces belongs to the one before."""
    return text.strip().replace("\n  ", " ").splitlines()


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
    times = {
        "startup_us": 9.0,
        "wakeup_us": 3.0,
        "dispatch_us": 2.0,
        "handover_us": 2.0,
        "burst_us": 50.0,
    }
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
