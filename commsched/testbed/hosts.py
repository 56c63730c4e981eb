"""How a process gets onto a host: scripts that stand in for ssh, host names and host files."""

import contextlib
import os
import shutil
from pathlib import Path

from commsched.errors import CommschedError
from commsched.testbed import network
from commsched.testbed.spec import Spec

# Places of root's own for scripts; many systems let nothing be executed in the first.
HOMES = ("/run", "/var/lib", "/root")

# Stands in for ssh: `enter [options] HOST COMMAND...`. What it starts ends with its caller.
ENTER = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec setpriv --pdeathsig KILL {folder}/host "$host" "$*"
"""
# A process that enters gets its own host name, shared memory, temporary files and processes, so
# that no transport can mistake two hosts for one. The kernel kills all processes of a namespace
# whose first one dies, which is how everything ends that the command may have started.
HOST = """\
#!/bin/sh
setpriv --pdeathsig KILL ip netns exec {prefix}"$1" \
    unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc {folder}/inside "$1" "$2"
status=$?
[ $status -ne 137 ] || echo "$1" >> {folder}/died
exit $status
"""
INSIDE = """\
#!/bin/sh
mount -t tmpfs -o mode=1777 commsched /dev/shm &&
    mount -t tmpfs commsched {folder}/tmp &&
    mount --bind {folder}/hosts /etc/hosts &&
    echo "$1" > /proc/sys/kernel/hostname || exit 126
TMPDIR={folder}/tmp sh -c "$2"
exit $?
"""


def home() -> Path:
    """The folder of all testbeds, which has a folder for each."""
    for place in HOMES:
        if Path(place).is_dir() and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            return Path(place, "commsched")
    raise CommschedError(f"a testbed needs to execute files in one of {', '.join(HOMES)}")


class Files:
    """The files of one testbed; they follow from its name and spec, and are written when needed."""

    def __init__(self, name: str) -> None:
        self._folder = home() / name
        self.enter = self._folder / "enter"
        self._name = name

    def slots(self, family: str) -> Path:
        """The host file of an MPI."""
        return self._folder / family.replace(" ", "-").lower()

    def write(self, spec: Spec) -> None:
        """Write all of them."""
        hosts = spec.names
        addresses = [f"{network.address(i)} {host}" for i, host in enumerate(hosts)]
        content = {
            self._folder / "hosts": ["127.0.0.1 localhost", *addresses],
            self.slots("MPICH"): [f"{host}:{spec.lanes}" for host in hosts],
            self.slots("Open MPI"): [f"{host} slots={spec.lanes}" for host in hosts],
        }
        prefix = network.namespace(self._name, "")
        scripts = {"enter": ENTER, "host": HOST, "inside": INSIDE}
        try:
            (self._folder / "tmp").mkdir(parents=True, exist_ok=True)
            for path, lines in content.items():
                path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
            for file, text in scripts.items():
                path = self._folder / file
                path.write_text(text.format(prefix=prefix, folder=self._folder), encoding="ascii")
                path.chmod(0o755)
            (self._folder / "died").unlink(missing_ok=True)
        except OSError as error:
            raise CommschedError(f"{self._folder}: cannot be written: {error.strerror}") from None

    def died(self) -> list[str]:
        """The hosts whose first process was killed since the files were written, but for h0."""
        try:
            found = (self._folder / "died").read_text(encoding="ascii").split()
        except OSError:
            return []
        return sorted(set(found) - {"h0"})  # there it is mpiexec, whose status tells

    def remove(self) -> None:
        """Take them away; also the folder of all testbeds, after the last."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not there, or another testbed is in it
            self._folder.parent.rmdir()
