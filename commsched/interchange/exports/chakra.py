"""Export to Chakra execution traces for ASTRA-sim, one file per rank: NAME.RANK.et.

ASTRA-sim runs one compute node of the device and one of the host at a time. Coding and merging run
beside the layers, so they are host nodes (is_cpu_op). Attributes of messages have the types that
Chakra's feeder reads:
comm_size and comm_type are int64, comm_src, comm_dst and comm_tag int32. Durations are whole us.
"""

from collections.abc import Sequence
from pathlib import Path

from commsched import files
from commsched.interchange import chakra_messages as chakra
from commsched.interchange.export import EXPORTS, Export
from commsched.interchange.tasks import Task, TaskKind

COMPUTE = "compute"  # the stream of the layers
KINDS = {
    TaskKind.WORK: chakra.COMPUTE,
    TaskKind.SEND: chakra.SEND,
    TaskKind.RECEIVE: chakra.RECEIVE,
    TaskKind.ALL_REDUCE: chakra.COLLECTIVE,
}


def write(ranks: Sequence[Sequence[Task]], folder: Path, name: str) -> list[Path]:
    """Write one file per rank."""
    found = []
    for rank, tasks in enumerate(ranks):
        found.append(folder / f"{name}.{rank}.et")
        with files.writing(found[-1]) as file:
            for packed in chakra.packed(chakra.HEAD, *(_node(rank, task) for task in tasks)):
                file.write(packed)
    return found


def _node(rank: int, task: Task) -> bytes:
    node = chakra.message()(
        id=task.number + 1,
        name=task.name,
        type=KINDS[task.kind],
        data_deps=[number + 1 for number in task.after],
        duration_micros=round(task.seconds * 1e6),
    )
    beside = task.kind is TaskKind.WORK and task.stream != COMPUTE
    node.attr.add(name="is_cpu_op", bool_val=beside)
    if task.kind is TaskKind.ALL_REDUCE:
        node.attr.add(name="comm_type", int64_val=chakra.ALL_REDUCE)
    if task.kind is not TaskKind.WORK:
        node.attr.add(name="comm_size", int64_val=task.nbytes)
    if task.peer >= 0:
        ends = (rank, task.peer) if task.kind is TaskKind.SEND else (task.peer, rank)
        for key, value in zip(("comm_src", "comm_dst"), ends, strict=True):
            node.attr.add(name=key, int32_val=value)
        node.attr.add(name="comm_tag", int32_val=task.tag)
    content: bytes = node.SerializeToString()
    return content


EXPORTS.add("chakra")(
    Export(
        "Chakra execution traces for ASTRA-sim, one per rank",
        write,
        chakra.check,
        collectives=True,
    )
)
