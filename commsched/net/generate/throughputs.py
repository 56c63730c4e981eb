"""Published training throughputs of nets on newer devices than the profiled one."""

from commsched.net.measured import Published

LAMBDA = "Lambda, public repository lambdal/deeplearning-benchmark"
NEWER = f"{LAMBDA}, pytorch/pytorch-train-throughput-fp32.csv, commit 0551cb7: FP32 on one {{}}"
OLDER = f"{LAMBDA}, pytorch-train-throughput-fp32.csv, commit 000bc82: FP32 on one {{}}"
# Data sheets: 1/s in float16 and, for float32, with TF32 matrix units, which PyTorch uses; B/s.
SOLD = {
    "NVIDIA A100-SXM4-40GB": (312e12, 156e12, 1555e9),
    "NVIDIA A100-SXM4-80GB": (312e12, 156e12, 2039e9),
    "NVIDIA A100-PCIe-80GB": (312e12, 156e12, 1935e9),
    "NVIDIA H100-PCIe-80GB": (756e12, 378e12, 2000e9),
    "NVIDIA H100-SXM5-80GB": (989e12, 494e12, 3350e9),
}
# Device, row of the table, row of the V100 there, source; samples/s by net: device, V100.
ROWS: tuple[tuple[str, str, str, str, dict[str, tuple[int, int]]], ...] = (
    (
        "NVIDIA A100-SXM4-40GB",
        "A100 40GB SXM4",
        "V100 32GB",
        OLDER,
        {"resnet50": (798, 368), "bert-base": (154, 42)},
    ),
    (
        "NVIDIA A100-SXM4-80GB",
        "A100 80GB SXM4",
        "V100 16GB",
        NEWER,
        {"resnet50": (1066, 369), "bert-base": (239, 42)},
    ),
    (
        "NVIDIA A100-PCIe-80GB",
        "A100 80GB PCIe",
        "V100 16GB",
        NEWER,
        {"resnet50": (1014, 369), "bert-base": (224, 42)},
    ),
    (
        "NVIDIA H100-PCIe-80GB",
        "H100 80GB PCIe Gen5",
        "V100 16GB",
        NEWER,
        {"resnet50": (1197, 369), "bert-base": (292, 42)},
    ),
    (
        "NVIDIA H100-SXM5-80GB",
        "H100 80GB SXM5",
        "V100 16GB",
        NEWER,
        {"resnet50": (1753, 369), "bert-base": (408, 42)},
    ),
)
COLUMNS = {"resnet50": "resnet50", "bert-base": "bert_base_squad"}


def published(net: str) -> tuple[Published, ...]:
    """Return the throughputs of a net; none if no source has them."""
    throughputs = []
    for device, row, reference, source, rates in ROWS:
        if net not in rates:
            continue
        flops, float32, bandwidth = SOLD[device]
        throughputs.append(
            Published(
                device=device,
                flops=flops,
                float32=float32,
                bandwidth=bandwidth,
                rate=rates[net][0],
                reference=rates[net][1],
                source=(
                    f"{source.format(row)}, column {COLUMNS[net]}; reference: {reference} there;"
                    " peaks and bandwidth: NVIDIA data sheet"
                ),
            )
        )
    return tuple(throughputs)
