"""Named plug-ins: a file registers itself with a decorator and is found by its name."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from commsched.errors import CommschedError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A dictionary of plug-ins, filled by importing every module of `package` on first use."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._items: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str) -> Callable[[T], T]:
        """Register the decorated plug-in under `name`."""

        def register(item: T) -> T:
            assert name not in self._items, f"two {self.kind}s are named {name!r}"
            self._items[name] = item
            return item

        return register

    def _load(self) -> dict[str, T]:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self.package)
            for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"{self.package}.{module}")
        return self._items

    def __getitem__(self, name: str) -> T:
        items = self._load()
        if name not in items:
            known = ", ".join(sorted(items))
            raise CommschedError(f"no {self.kind} named {name!r}; known: {known}")
        return items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._load()))

    def __len__(self) -> int:
        return len(self._load())
