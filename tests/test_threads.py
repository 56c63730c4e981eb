"""Threads that ask for the same thing first, such as exchangers of a process that begin at once."""

import subprocess
import sys

from commsched.registry import Registry

# A crash of msgspec would end the process of the tests.
CONVERT = """
import sys, threading, msgspec
from commsched import files

def convert():
    gate.wait()
    assert files.convert({"a": one, "b": [one]}, kind, "here").b[0].k0 == 0

sys.setswitchinterval(1e-6)
one = {f"k{i}": i for i in range(20)}
for _ in range(40):
    inner = msgspec.defstruct("Inner", [(key, int) for key in one])
    kind = msgspec.defstruct("Outer", [("a", inner), ("b", list[inner])])
    gate = threading.Barrier(4)
    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
MODULE = """
import builtins, threading
registry, found = builtins.registry_of_threads
asks = threading.Thread(target=lambda: found.append("late" in registry))
asks.start()
asks.join(0.1)  # it waits for this import
registry.add("late")(1)
found.append(asks)
"""

# A registry holds a lock while it imports modules. A module that asks a registry while another
# thread imports it would wait for that lock, and the registry for the module: forever.
IMPORTS = """
import importlib, commsched
from commsched.registry import Registry

Registry._load = None
for module in {*commsched.SURFACE.values()}:
    importlib.import_module(module)
"""


def test_an_import_asks_no_registry() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], timeout=60, check=False)
    assert done.returncode == 0


def test_threads_may_convert_to_the_same_type_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CONVERT], timeout=60, check=False)
    assert done.returncode == 0


def test_a_thread_waits_for_the_names_that_another_one_imports(tmp_path, monkeypatch) -> None:
    package = tmp_path / "package_of_threads"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "slow.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    registry, found = Registry[int]("thing", package.name), []
    monkeypatch.setattr("builtins.registry_of_threads", (registry, found), raising=False)
    assert registry["late"] == 1
    (asked,) = (each for each in found if not isinstance(each, bool))
    asked.join()
    assert found == [True, asked] or found == [asked, True]
