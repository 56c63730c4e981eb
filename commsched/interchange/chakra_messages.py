"""The protobuf messages of a Chakra execution trace, limited to the fields that commsched uses.

Source: schema/protobuf/et_def.proto of github.com/mlcommons/chakra, version 0.0.4: a file is a
GlobalMetadata and then Nodes, each after its length.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from commsched.errors import CommschedError, install
from commsched.interchange.content import Content

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
HEAD = b"\x0a\x050.0.4"  # GlobalMetadata: version
ALL_REDUCE = 0  # CollectiveCommType
# name: (number, type), with the type codes of google.protobuf.descriptor_pb2.FieldDescriptorProto
ATTRIBUTE = {"name": (1, 9), "int32_val": (7, 5), "int64_val": (9, 3), "uint32_val": (11, 13)}
ATTRIBUTE |= {"uint64_val": (13, 4), "bool_val": (27, 8), "string_val": (29, 9)}
NODE = {"id": (1, 4), "name": (2, 9), "type": (3, 5), "ctrl_deps": (4, 4), "data_deps": (5, 4)}
NODE |= {"start_time_micros": (6, 4), "duration_micros": (7, 4), "attr": (10, 11)}
REPEATED = ("ctrl_deps", "data_deps", "attr")


class ChakraNode(NamedTuple):
    """A node: an operator of the host, a kernel of the device, or a collective."""

    number: int
    name: str
    kind: int
    start: int  # us; 0: not recorded
    seconds: float
    inputs: tuple[int, ...]  # nodes that must end before this one
    facts: Mapping[str, int]
    group: str = ""  # process group of a collective; "": not recorded

    @property
    def sums(self) -> bool:
        """Tell whether the node is an all-reduce."""
        return self.facts.get("comm_type") == ALL_REDUCE

    @property
    def on_host(self) -> bool:
        """Tell whether the host runs the node."""
        return bool(self.facts.get("is_cpu_op", 1))


@cache
def message() -> Any:
    """Return the class of a Node."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, fields in (("Attribute", ATTRIBUTE), ("Node", NODE)):
        made = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            row = made.field.add(name=field, number=number, type=kind)
            row.label = row.LABEL_REPEATED if field in REPEATED else row.LABEL_OPTIONAL
            if kind == row.TYPE_MESSAGE:
                row.type_name = ".et.Attribute"
            elif field.endswith("_val"):  # of a oneof, whose set member must be known
                made.oneof_decl or made.oneof_decl.add(name="value")
                row.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("et.Node"))


def check() -> None:
    """Raise an error if protobuf is not installed."""
    google = importlib.util.find_spec("google")
    if google is None or importlib.util.find_spec("google.protobuf") is None:
        raise CommschedError(f"a Chakra trace needs protobuf; {install('chakra')}")


def packed(*messages: bytes) -> Iterator[bytes]:
    """Yield the bytes of a trace file: each message preceded by its length as a varint."""
    for message in messages:
        size, head = len(message), bytearray()
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        yield bytes([*head, size]) + message


def nodes(content: Content) -> list[ChakraNode]:
    """Read all nodes of a trace."""
    check()
    from google.protobuf.message import DecodeError

    kind, found = message(), []
    try:
        for number, packed in enumerate(_messages(content.data)):
            if number:  # message 0 is the GlobalMetadata
                found.append(_node(kind.FromString(packed)))
    except (DecodeError, IndexError, UnicodeDecodeError) as error:
        said = str(error) or type(error).__name__
        raise CommschedError(f"{content.where}: not a Chakra execution trace: {said}") from None
    return found


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file; a varint before each message holds its length."""
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if size > len(data) - at:
            raise IndexError(f"a message of {size} bytes with {len(data) - at} bytes left")
        yield data[at : at + size]
        at += size


def _node(node: Any) -> ChakraNode:
    fields = [(one, one.WhichOneof("value")) for one in node.attr]
    values = {one.name: getattr(one, field) for one, field in fields if field}
    return ChakraNode(
        number=node.id,
        name=node.name,
        kind=node.type,
        start=node.start_time_micros,
        seconds=node.duration_micros / 1e6,
        inputs=(*node.data_deps, *node.ctrl_deps),
        facts={name: int(value) for name, value in values.items() if not isinstance(value, str)},
        group=str(values.get("pg_name", "")),
    )
