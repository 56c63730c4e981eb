"""Messages that are encoded before they are sent and decoded when they are there."""

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.kernels.modules import module_of
from commsched.plan.model import Plan
from commsched.program.model import Op
from commsched.run.engine.messages import Mail
from commsched.run.wire.device import HOST, ComputeDevice

TYPES = {4: np.float32, 2: np.float16}  # by the bytes of a value


class CodedMail:
    """Codes what another mail sends and takes, as each operation says."""

    def __init__(self, mail: Mail, plan: Plan, rank: int) -> None:
        self._mail = mail
        self._device: ComputeDevice = HOST
        self._state: State = {"rank": rank, "seed": plan.seed}

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
        state = {**self._state, "step": step, "name": op.name}
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
