"""The namespaces, the bridge and the shaped ports of a testbed: how to build and remove them.

The kernel holds all state, so no file can contradict it: a testbed NAME is its namespaces
`commsched.NAME.h0`, ... and `commsched.NAME.switch`; each host has `eth0`, whose other end is the
port of the same name as the host on the bridge `switch`; both ends have a token bucket. The
bridge's alias, set last, holds the lanes. Nothing is made in the machine's own namespace.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from commsched.errors import CommschedError
from commsched.lab.testbed.spec import Spec
from commsched.lab.testbed.system import command

FOLDER = Path("/run/netns")  # where iproute2 keeps named namespaces
PREFIX = "commsched."
SWITCH = "switch"
INTERFACE = "eth0"
NETWORK = "10.77.0"  # the first three bytes of a host's address, seen only inside the namespaces
ALIAS = "commsched lanes="
FRAME = 9000  # B, jumbo: the headers take 0.7 % of the rate, with 1500 they take 4.4 %
HEADERS = 66  # B of a frame that are not data: Ethernet 14, IPv4 20, TCP with timestamps 32
# s of traffic that a bucket saves up over a pause. Half of it: late timers lost up to 7 % of the
# rate on a loaded 2-core machine. Twice: 250 kB arrived 1 ms early.
BURST = 0.5e-3
LEAST_BURST = FRAME + 300  # B, a bucket smaller than a frame lets nothing through
QUEUE = 64_000_000  # B, more than senders keep in flight: the switch loses nothing
WINDOW = 20e-3  # most s of traffic that a receiver lets one sender have in flight
LEAST_WINDOW, MOST_WINDOW = 262_144, 6_291_456  # B, the latter is the kernel's default
AGAIN = 0.1  # s between attempts to read counters
KILL = 10.0  # s for killed processes to be gone


class Traffic(NamedTuple):
    """Traffic of one host's port."""

    sent: int  # B, with all headers
    received: int
    frames_sent: int
    frames_received: int
    dropped: int  # frames, in both directions

    def since(self, before: "Traffic") -> "Traffic":
        """Return the traffic after `before`."""
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def data_sent(self) -> int:
        """Bytes sent, without headers; frames without TCP have shorter headers than counted."""
        return max(self.sent - HEADERS * self.frames_sent, 0)

    @property
    def data_received(self) -> int:
        return max(self.received - HEADERS * self.frames_received, 0)


def namespace(name: str, host: str) -> str:
    """Return the namespace of a host, or of the switch."""
    return f"{PREFIX}{name}.{host}"


def address(host: int) -> str:
    """Return the IPv4 address of host number `host`."""
    return f"{NETWORK}.{host + 1}"


def found() -> dict[str, list[str]]:
    """Return the namespaces of every testbed, complete or not."""
    beds: dict[str, list[str]] = {}
    if FOLDER.is_dir():
        for entry in sorted(os.listdir(FOLDER)):
            parts = entry.split(".")
            if entry.startswith(PREFIX) and len(parts) == 3:
                beds.setdefault(parts[1], []).append(entry)
    return beds


def build(name: str, spec: Spec) -> None:
    """Create all namespaces, links and rates; a failure may leave a part of them."""
    hosts = [namespace(name, host) for host in spec.names]
    switch = namespace(name, SWITCH)
    command("ip", "-batch", "-", lines=_lines(f"netns add {x}" for x in [switch, *hosts]))
    made = [f"link add {SWITCH} type bridge mcast_snooping 0", f"link set {SWITCH} up"]
    for host, where in zip(spec.names, hosts, strict=True):
        peer = f"{INTERFACE} mtu {FRAME} netns {where}"
        made += [
            f"link add {host} mtu {FRAME} type veth peer name {peer}",
            f"link set {host} master {SWITCH} addrgenmode none",
            f"link set {host} up",
        ]
    command("ip", "-n", switch, "-batch", "-", lines=_lines(made))
    for number, where in enumerate(hosts):
        _build_host(where, number, spec.rates[number])
    shaped = [_bucket(host, rate) for host, rate in zip(spec.names, spec.rates, strict=True)]
    command("tc", "-n", switch, "-batch", "-", lines=_lines(shaped))
    command("ip", "-n", switch, "link", "set", SWITCH, "alias", f"{ALIAS}{spec.lanes}")


def _build_host(where: str, number: int, rate: float) -> None:
    up = [
        "link set lo up",
        f"link set {INTERFACE} addrgenmode none",  # no IPv6 chatter in the counters
        f"addr add {address(number)}/16 dev {INTERFACE}",
        f"link set {INTERFACE} up",
    ]
    command("ip", "-n", where, "-batch", "-", lines=_lines(up))
    command("tc", "-n", where, "-batch", "-", lines=_lines([_bucket(INTERFACE, rate)]))
    window = round(min(max(WINDOW * rate, LEAST_WINDOW), MOST_WINDOW))
    settings = {
        "tcp_rmem": f"4096 131072 {window}",
        "tcp_slow_start_after_idle": "0",  # a pause must not slow down the next message
    }
    script = "".join(f"echo {v} > /proc/sys/net/ipv4/{k} || exit 1\n" for k, v in settings.items())
    command("ip", "netns", "exec", where, "sh", "-s", lines=script)


def _bucket(device: str, rate: float) -> str:
    """Return a line for tc, whose `bps` are bytes per second."""
    burst = max(BURST * rate, LEAST_BURST)
    return (
        f"qdisc add dev {device} root tbf rate {rate:.0f}bps burst {burst:.0f}b limit {QUEUE:.0f}b"
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def read(name: str) -> Spec | None:
    """Read a testbed's state from the kernel; None unless it is complete."""
    there = found().get(name, [])
    switch = namespace(name, SWITCH)
    if switch not in there:
        return None
    try:
        links = _json("ip", "-n", switch, "-j", "link", "show", SWITCH)
        ports = _rates(switch)
        spec = Spec(
            int(links[0]["ifalias"].removeprefix(ALIAS)),
            tuple(ports[f"h{i}"] for i in range(len(ports))),
        )
        whole = {namespace(name, host) for host in [SWITCH, *spec.names]}
        rates = [_rates(namespace(name, host))[INTERFACE] for host in spec.names]
    except (CommschedError, LookupError, ValueError):
        return None  # half built, or half removed
    return spec if set(there) == whole and tuple(rates) == spec.rates else None


def _rates(where: str) -> dict[str, float]:
    """Return the B/s of each token bucket in a namespace."""
    return {port: float(row["options"]["rate"]) for port, row in _counts(where).items()}


def _json(*words: str) -> Any:
    return json.loads(command(*words) or "[]")


def traffic(name: str, spec: Spec) -> tuple[Traffic, ...]:
    """Return the traffic of each host's port so far, as `tc -s` counts it."""
    for last in (False, False, True):
        try:
            ports = _counts(namespace(name, SWITCH))
            own = [_counts(namespace(name, host))[INTERFACE] for host in spec.names]
            into = [ports[host] for host in spec.names]
            break
        except (KeyError, CommschedError):
            if last:
                raise vanished(name) from None
            time.sleep(AGAIN)  # ending all processes of a host ends a `tc` in it, too
    return tuple(
        Traffic(
            sent=int(out["bytes"]),
            received=int(back["bytes"]),
            frames_sent=int(out["packets"]),
            frames_received=int(back["packets"]),
            dropped=int(out["drops"]) + int(back["drops"]),
        )
        for out, back in zip(own, into, strict=True)
    )


def connected(name: str, spec: Spec) -> bool:
    """Tell whether every host still has its port; fast enough for calls during a job."""
    try:
        switch = namespace(name, SWITCH)
        shown = command("ip", "-n", switch, "-o", "link", "show", "master", SWITCH)
    except CommschedError:
        return False
    return len(shown.splitlines()) == spec.hosts


def vanished(name: str) -> CommschedError:
    """Return the error for a missing port."""
    return CommschedError(
        f"testbed {name!r}: a shaped port has vanished; commsched testbed down, then up"
    )


def _counts(where: str) -> dict[str, dict[str, Any]]:
    rows = _json("tc", "-n", where, "-s", "-j", "qdisc", "show")
    return {row["dev"]: row for row in rows if row["kind"] == "tbf"}


def processes(namespaces: list[str]) -> set[int]:
    """Return the processes that run in any of the namespaces."""
    inodes = set()
    for name in namespaces:
        try:
            inodes.add((FOLDER / name).stat().st_ino)
        except OSError:
            continue
    living = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns/net").stat().st_ino in inodes:
                    living.add(int(entry.name))
            except OSError:
                continue  # the process has ended
    return living


def kill(namespaces: list[str]) -> None:
    """End every process in the namespaces, and wait until they are gone."""
    end = time.monotonic() + KILL
    while living := processes(namespaces):
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # stop all before the first is killed
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, sign)
        if time.monotonic() > end:
            raise CommschedError(f"testbed: process {min(living)} cannot be killed")
        time.sleep(0.02)


def remove(name: str) -> bool:
    """Remove all of a testbed, processes first; return False if there was nothing."""
    there = found().get(name, [])
    kill(there)
    for each in there:
        try:
            command("ip", "netns", "del", each)
        except CommschedError:
            if (FOLDER / each).exists():
                raise
    return bool(there)
