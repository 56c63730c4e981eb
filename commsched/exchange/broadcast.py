"""The broadcast of one member's values; `METHODS` does not list it, because it makes no sum."""

from commsched.coding.registry import CODECS
from commsched.exchange.method import Method, Phase
from commsched.exchange.payload import Payload
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.chain import chain


class Broadcast(Method):
    """Send values down a chain, from member 0 unless another root is named."""

    name = "broadcast"
    lossless = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        return (self.phase(spec, group, 0),)

    def phase(self, spec: BucketSpec, group: Group, root: int) -> Phase:
        """Return the phase of a chain that begins at member `root`."""
        schedule = chain(group.size, root)
        return Phase(
            schedule=schedule,
            payload=Payload.reducing(schedule, CODECS["dense"], spec),
        )


BROADCAST = Broadcast()
