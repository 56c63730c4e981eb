"""The files that start processes on a host: scripts in place of ssh, host names, host files."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from commsched.errors import CommschedError
from commsched.lab.testbed import network
from commsched.lab.testbed.spec import Spec

# Folders owned by root for scripts; many systems mount the first with noexec.
HOMES = ("/run", "/var/lib", "/root")
LOOKS, LOOK = 100, 0.1  # looks, and s of each, at whether all hosts have ended after mpiexec

# Stands in for ssh: `enter [options] HOST COMMAND...`. As with ssh, the command outlives the
# script, which prterun kills when it loses a host. The command holds a lock until its end.
ENTER = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec 9< {folder}/host
flock --shared 9
exec setsid --fork --wait {folder}/host "$host" "$*"
"""
# The command on h0. An MPI may end before its hosts; the script waits for them, to learn which one
# died. The end of this script kills the rest; `ended` tells that apart from a death.
FIRST = """\
#!/bin/sh
"$@"
status=$?
looks={looks}
until flock --exclusive --timeout {look} {folder}/host true || [ $looks -eq 0 ]; do
    [ -e {folder}/died ] && break
    looks=$((looks - 1))
done
: > {folder}/ended
exit $status
"""
# A process that enters gets its own host name, shared memory, temporary files, processes and cores,
# so that no transport can mistake two hosts for one. The kernel kills all processes of a namespace
# whose first one dies, and so ends everything that the command has started.
HOST = """\
#!/bin/sh
trap : PIPE  # the shell reports a killed command, perhaps to a closed pipe
setpriv --pdeathsig KILL taskset --cpu-list "$(cat {folder}/cores."$1")" \
    ip netns exec {prefix}"$1" \
    unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc \
    {folder}/inside "$1" "$2" 9<&-
status=$?
[ $status -ne 137 ] || [ -e {folder}/ended ] || echo "$1" >> {folder}/died
exit $status
"""
INSIDE = """\
#!/bin/sh
mount -t tmpfs -o mode=1777 commsched /dev/shm &&
    mount -t tmpfs commsched {folder}/tmp &&
    mount --bind {folder}/hosts /etc/hosts &&
    echo "$1" > /proc/sys/kernel/hostname || exit 126
export TMPDIR={folder}/tmp
eval "$2"
exit $?
"""


def home() -> Path:
    """Return the folder that contains a folder for each testbed."""
    for place in HOMES:
        if Path(place).is_dir() and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            return Path(place, "commsched")
    raise CommschedError(f"a testbed needs to execute files in one of {', '.join(HOMES)}")


def cores(hosts: int, usable: Sequence[int]) -> list[list[int]]:
    """Share out cores among hosts: several cores per host, several hosts per core, all for all."""
    each, others = divmod(len(usable), hosts)
    if not others:
        return [list(usable[each * i : each * (i + 1)]) for i in range(hosts)]
    together, others = divmod(hosts, len(usable))
    if not others:
        return [[usable[i // together]] for i in range(hosts)]
    return [list(usable)] * hosts


class Files:
    """The files of one testbed, which follow from its name and spec."""

    def __init__(self, name: str) -> None:
        self._folder = home() / name
        self.enter = self._folder / "enter"
        self._name = name

    def first(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on h0 and ends when its caller ends."""
        command = shlex.join([str(self._folder / "first"), *words])
        return ["setpriv", "--pdeathsig", "KILL", str(self._folder / "host"), "h0", command]

    def slots(self, family: str) -> Path:
        """Return the host file of an MPI."""
        return self._folder / family.replace(" ", "-").lower()

    def write(self, spec: Spec) -> None:
        """Write all files of the testbed."""
        hosts = spec.names
        addresses = [f"{network.address(i)} {host}" for i, host in enumerate(hosts)]
        content = {
            self._folder / "hosts": ["127.0.0.1 localhost", *addresses],
            self.slots("MPICH"): [f"{host}:{spec.lanes}" for host in hosts],
            self.slots("Open MPI"): [f"{host} slots={spec.lanes}" for host in hosts],
        }
        usable = sorted(os.sched_getaffinity(0))
        for host, own in zip(hosts, cores(spec.hosts, usable), strict=True):
            content[self._folder / f"cores.{host}"] = [",".join(map(str, own))]
        prefix = network.namespace(self._name, "")
        scripts = {"enter": ENTER, "first": FIRST, "host": HOST, "inside": INSIDE}
        try:
            (self._folder / "tmp").mkdir(parents=True, exist_ok=True)
            for path, lines in content.items():
                path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
            for file, text in scripts.items():
                path = self._folder / file
                script = text.format(prefix=prefix, folder=self._folder, looks=LOOKS, look=LOOK)
                path.write_text(script, encoding="ascii")
                path.chmod(0o755)
            for file in ("died", "ended"):
                (self._folder / file).unlink(missing_ok=True)
        except OSError as error:
            raise CommschedError(f"{self._folder}: cannot be written: {error.strerror}") from None

    def died(self) -> list[str]:
        """Return the hosts whose first process was killed since the files were written."""
        try:
            found = (self._folder / "died").read_text(encoding="ascii").split()
        except OSError:
            return []
        return ["h0"] if "h0" in found else sorted(set(found))  # all others end with h0

    def remove(self) -> None:
        """Remove the files; after the last testbed, also the folder of all testbeds."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not there, or another testbed is in it
            self._folder.parent.rmdir()
