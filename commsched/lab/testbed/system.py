"""The rights and the programs that a testbed needs, and the execution of its commands."""

import os
import shutil
import subprocess
from pathlib import Path

from commsched.errors import CommschedError

PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "flock": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# Bits of Linux capabilities. Source: include/uapi/linux/capability.h.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
SECONDS = 60.0  # for one command of ip or tc; a hung one must not hang a test


def lacking() -> str | None:
    """Return the reason why this process cannot create a testbed, or None."""
    if not Path("/proc/self/ns/net").exists():
        return "a testbed needs Linux with network namespaces"
    if os.geteuid() != 0:
        return "a testbed needs root, to make network namespaces; run it with sudo"
    missing = [name for name in PROGRAMS if _found(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(PROGRAMS[name] for name in missing))
        return f"a testbed needs {' and '.join(missing)}; apt-get install {packages}"
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    capabilities = next((int(x.split()[1], 16) for x in status.splitlines() if "CapEff" in x), 0)
    without = [name for name, bit in CAPABILITIES.items() if not capabilities >> bit & 1]
    if without:
        return f"a testbed needs {' and '.join(without)}, which this container does not give root"
    return None


def _found(program: str) -> str | None:
    """Find a program, also where only root's PATH leads."""
    return shutil.which(program) or shutil.which(program, path=SBIN)


def require() -> None:
    """Raise an error if this process cannot create a testbed."""
    reason = lacking()
    if reason is not None:
        raise CommschedError(reason)


def command(*words: str, lines: str = "") -> str:
    """Run a command that reads `lines`; return its output, or raise an error with its message."""
    try:
        done = subprocess.run(
            [_found(words[0]) or words[0], *words[1:]],
            input=lines,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except OSError as error:
        raise CommschedError(f"{words[0]}: cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CommschedError(f"'{' '.join(words)}' took more than {SECONDS:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise CommschedError(f"'{' '.join(words)}' failed: {said[0]}")
    return done.stdout
