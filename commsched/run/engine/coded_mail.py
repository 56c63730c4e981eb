"""Messages that are encoded before they are sent and decoded after they arrive."""

from collections.abc import Mapping

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.state import kept_of, restore
from commsched.kernels.modules import module_of
from commsched.plan.model import Plan
from commsched.program.model import Op
from commsched.run.engine.messages import Mail
from commsched.run.wire.device import HOST, ComputeDevice

TYPES = {4: np.float32, 2: np.float16}  # by the bytes of a value


class CodedMail:
    """A mail that codes the messages of another mail by the codec of each operation."""

    def __init__(self, mail: Mail, plan: Plan, rank: int) -> None:
        self._mail = mail
        self._device: ComputeDevice = HOST
        self._state: State = {"rank": rank, "seed": plan.seed}
        self._states: dict[str, State] = {}  # of sent messages, by name

    def use_device(self, device: ComputeDevice) -> None:
        self._device = device
        self._mail.use_device(device)

    def compute(self, step: int, op: Op) -> None:
        self._mail.compute(step, op)

    def outgoing(self, step: int, op: Op) -> Array:
        """Return the packet of a SEND, (nbytes,) uint8."""
        packet = self._mail.outgoing(step, op)
        if not op.codec:
            return packet
        values = packet.view(TYPES[op.width]).astype(np.float32, copy=False)
        state = self._states.setdefault(op.name, {**self._state, "name": op.name})
        state["step"] = step
        found = CODECS[op.codec].encode(values, state).view(np.uint8)
        self._device.mark().wait()
        return found

    def incoming(self, step: int, op: Op, packet: Array) -> None:
        """Take the packet of a RECV, (nbytes,) uint8."""
        if op.codec:
            values = module_of(packet).empty(op.values, np.float32)
            CODECS[op.codec].decode(packet, values)
            packet = values.astype(TYPES[op.width], copy=False).view(np.uint8)
        self._mail.incoming(step, op, packet)

    def kept(self) -> dict[str, State]:
        """Return the codecs' state for each sent message; empty for codecs without state."""
        found = {name: kept_of(state) for name, state in self._states.items()}
        return {name: kept for name, kept in found.items() if kept}

    def restore(self, kept: Mapping[str, State]) -> None:
        """Restore what `kept` returned."""
        for name, part in kept.items():
            self._states[name] = {**self._state, "name": name}
            restore(self._states[name], part)
