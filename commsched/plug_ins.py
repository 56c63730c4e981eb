"""Plug-ins outside the package: Python files that a user names, and entry points."""

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commsched.errors import CommschedError

VARIABLE = "COMMSCHED_PLUGINS"  # files, as in PATH; ranks inherit it
GROUP = "commsched.plugins"  # entry points: modules that register what they define
LOADING = threading.RLock()  # other threads wait for all names; an import may ask a registry
_loaded: set[str] = set()
_failed: dict[str, CommschedError] = {}
_importing: list[str] = []  # the names of the plug-ins that are being imported, outermost first


class PlugInError(CommschedError):
    """A plug-in cannot be imported."""


def use(path: str) -> None:
    """Add a file to the plug-ins that are loaded, also in processes started later."""
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*_files(), str(Path(path).resolve())]))


def load() -> None:
    """Import the files of COMMSCHED_PLUGINS, each once."""
    for path in _files():
        if path not in _loaded:
            _loaded.add(path)  # before the import, which may ask a registry in its turn
            try:
                _import(Path(path))
            except PlugInError as error:
                _failed[path] = error
        if path in _failed:  # whichever registry asks
            raise _failed[path]


def load_installed() -> None:
    """Import the modules of entry points, once; called for names that nothing else has."""
    with LOADING:
        if GROUP in _loaded:
            return
        _loaded.add(GROUP)
        from importlib.metadata import entry_points  # takes 20 ms, which ranks do without

        for point in entry_points(group=GROUP):
            package = point.dist.name if point.dist else "unknown"
            with _errors_of(f"{point.value} of the installed package {package}"):
                point.load()


def importing() -> str:
    """Return the name of the plug-in that is being imported, or nothing."""
    return _importing[-1] if _importing else ""


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Say in one sentence which plug-in cannot be imported, and why."""
    _importing.append(name)
    try:
        yield
    except CommschedError as error:
        raise PlugInError(f"plug-in {name}: {error}") from error
    except Exception as error:
        raise PlugInError(
            f"plug-in {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        _importing.pop()


def _files() -> list[str]:
    return [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]


def module_name(path: Path) -> str:
    """Return the name under which a plug-in's file is imported."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return f"commsched_plugin_{place[:12]}"


def _import(path: Path) -> None:
    if path.suffix != ".py" or not path.is_file():
        raise PlugInError(f"plug-in {path}: expected a Python file that is there")
    if any(getattr(module, "__file__", None) == str(path) for module in [*sys.modules.values()]):
        return  # a test or script has imported it
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    with _errors_of(str(path)):
        try:
            spec.loader.exec_module(module)
        except Exception:
            del sys.modules[name]
            raise
