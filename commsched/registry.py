"""Registries of plug-ins: a decorator registers each plug-in, which is found by its name."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from commsched import plug_ins
from commsched.errors import CommschedError
from commsched.nearest_name import nearest
from commsched.plug_ins import PlugInError

T = TypeVar("T")
Maker = Callable[[list[str]], T]  # from the parameters behind a family's name


class Registry(Mapping[str, T]):
    """A dictionary of plug-ins, filled by importing every module of `packages` on first use."""

    def __init__(self, kind: str, *packages: str) -> None:
        self.kind = kind
        self.packages = packages
        self._items: dict[str, T] = {}
        self._plug_ins: dict[str, str] = {}  # of names that were added while one was imported
        self._families: dict[str, tuple[str, Maker[T]]] = {}
        self._made: dict[str, T] = {}
        self._loading = self._loaded = False

    def add(self, name: str) -> Callable[[T], T]:
        """Register the decorated plug-in under `name`."""

        def register(item: T) -> T:
            if name in self._items:
                raise self._clash(name)
            self._items[name] = item
            self._plug_ins[name] = plug_ins.importing()
            return item

        return register

    def _clash(self, name: str) -> CommschedError:
        """Return the error of a name used twice; name the plug-in unless it is being imported."""
        first, second = self._plug_ins[name], plug_ins.importing()
        assert first or second, f"two {self.kind}s are named {name!r}"
        taken = "" if second else f"plug-in {first}: "
        return CommschedError(f"{taken}two {self.kind}s are named {name!r}")

    def family(self, standard: str, listed: bool = True) -> Callable[[Maker[T]], Maker[T]]:
        """Register the decorated maker of plug-ins that are called FAMILY:PARAMETER:...

        `standard`: the full name for which the bare family name stands. If `listed`, it is the one
        name of the family in lists.
        """
        family = standard.partition(":")[0]

        def register(make: Maker[T]) -> Maker[T]:
            if family in self._families:
                raise self._clash(family)
            self._families[family] = standard, make
            self._plug_ins[family] = plug_ins.importing()
            if listed:
                self.add(standard)(make(standard.split(":")[1:]))
            return make

        return register

    def canonical(self, name: str) -> str:
        """Return the full name for a family's bare name, and any other name unchanged."""
        self._load()
        return self._families[name][0] if name in self._families else name

    def names_of(self, plug_in: str) -> list[str]:
        """Return the names that a plug-in has added; for a family, its standard name."""
        self._load()
        added = (name for name, by in self._plug_ins.items() if by == plug_in)
        return sorted({self.canonical(name) for name in added})

    def _find(self, name: str) -> T | None:
        """Return the plug-in of a name, also from an installed package if nothing else has it."""
        found = self._known(name)
        if found is None:
            plug_ins.load_installed()
            found = self._known(name)
        return found

    def _known(self, name: str) -> T | None:
        """Return the plug-in of a name; one with parameters is made at its first use."""
        items = self._load()
        if name in items:
            return items[name]
        family, colon, rest = name.partition(":")
        if family not in self._families:
            return None
        standard, make = self._families[family]
        if not colon:
            return self._known(standard)
        if name not in self._made:
            try:
                self._made[name] = make(rest.split(":"))
            except CommschedError as error:
                raise CommschedError(f"{self.kind} {name!r}: {error}") from None
        return self._made[name]

    def _load(self) -> dict[str, T]:
        if not self._loaded:
            with plug_ins.LOADING:
                self._fill()
        return self._items

    def _fill(self) -> None:
        """Import what registers itself, once; modules and plug-ins may ask meanwhile."""
        if self._loading:
            return
        self._loading = True
        for package in self.packages:
            path = importlib.import_module(package).__path__
            for module in sorted(m.name for m in pkgutil.iter_modules(path)):
                importlib.import_module(f"{package}.{module}")
        plug_ins.load()  # which may ask for what we ship
        self._loaded = True

    def __getitem__(self, name: str) -> T:
        found = self._find(name)
        if found is None:
            raise self.missing(name)
        return found

    def missing(self, name: str, *also: str) -> CommschedError:
        """Return the error of an unknown name; also: further names that are allowed."""
        known = sorted((*also, *self))
        near = nearest(name, known)
        return CommschedError(f"no {self.kind} named {name!r}; known: {', '.join(known)}{near}")

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._find(name) is not None
        except PlugInError:  # whatever was asked
            raise
        except CommschedError:
            return False

    def __iter__(self) -> Iterator[str]:
        plug_ins.load_installed()
        return iter(sorted(self._load()))

    def __len__(self) -> int:
        plug_ins.load_installed()
        return len(self._load())
