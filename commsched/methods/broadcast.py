"""What one member of a group has, for all of its members: no sum, so it is not in `METHODS`."""

from commsched.codecs import CODECS, Array, State
from commsched.collectives.chain import chain
from commsched.machine import Group
from commsched.methods.base import Method, Phase
from commsched.methods.payload import Payload
from commsched.plan.bucket import BucketSpec


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
