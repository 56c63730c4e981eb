"""What one member of a group has, for all of its members: no sum, so it is not in `METHODS`."""

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.method import Method, Phase
from commsched.exchange.payload import Payload
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.chain import chain


class Broadcast(Method):
    """Down a chain, from member 0 where nobody says from whom."""

    name = "broadcast"
    lossless = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        return (self.phase(spec, group, 0),)

    def phase(self, spec: BucketSpec, group: Group, root: int) -> Phase:
        """The exchange that member `root` begins."""

        def give(state: State, result: Array) -> None:
            state["result"] = result

        schedule = chain(group.size, root)
        return Phase(
            name="",
            schedule=schedule,
            payload=Payload.reducing(schedule, CODECS["dense"], spec),
            take=lambda state: state["gradient"],
            give=give,
            take_seconds=lambda device: 0.0,
            give_seconds=lambda device: 0.0,
        )


BROADCAST = Broadcast()
