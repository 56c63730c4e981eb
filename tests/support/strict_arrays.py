"""Arrays that compute with NumPy and refuse what CuPy refuses: to find out where no GPU is.

An array of this module never meets one of NumPy: not as an operand, not as an assigned value, not
by a silent copy to the host. Numbers are read where they are aligned only. What CuPy 14.2 has no
parameter for is refused, too. Memory of a device and its speed it does not stand for.
"""

import re
import sys
from typing import Any

import numpy as np

SAME = re.findall(
    r"\w+",
    """abs amax amin append arange argsort bincount clip concatenate copyto count_nonzero cumsum
    diff dot empty empty_like flatnonzero isin linspace max maximum mean min minimum ones packbits
    pad partition repeat searchsorted sort split stack sum unpackbits where zeros zeros_like""",
)
# What CuPy 14.2 takes by name: tests/test_real_cupy.py asks it.
KEYWORDS = {
    "arange": {"dtype"},
    "argsort": {"kind"},
    "bincount": {"minlength"},
    "concatenate": {"axis", "out"},
    "copyto": {"where"},
    "count_nonzero": {"axis"},
    "cumsum": {"dtype"},
    "diff": {"append", "prepend"},
    "isin": {"assume_unique", "invert"},
    "packbits": {"bitorder"},
    "searchsorted": {"side"},
    "stack": {"axis"},
    "sum": {"axis", "dtype"},
    "unpackbits": {"bitorder"},
}
METHODS = re.findall(
    r"\w+",
    """all any argmax argsort astype clip copy fill item max mean min nonzero reshape sum swapaxes
    take""",
)
FIELDS = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size")


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """One array, held by NumPy."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise TypeError("a silent copy to the host")

    def __array_ufunc__(self, function, method, *given, out=None, **named):
        if method != "__call__" or "where" in named:
            raise TypeError(f"CuPy has no such {function.__name__}")
        if out is None:
            return own(function(*map(plain, given), **named))
        assert all(isinstance(each, ndarray) for each in out), "the result is an array of NumPy"
        function(*map(plain, given), out=tuple(each.held for each in out), **named)
        return out[0]

    def __array_function__(self, function, kinds, given, named):
        if function.__name__ not in SAME:
            raise TypeError(f"CuPy has no {function.__name__}")
        return getattr(sys.modules["strict"], function.__name__)(*given, **named)

    def __getitem__(self, at):
        return own(self.held[inside(at)])

    def __setitem__(self, at, value):
        assert not isinstance(value, (list, tuple)), "CuPy takes numbers and arrays"
        self.held[inside(at)] = plain(value)

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return (own(each) for each in self.held)

    def __bool__(self):
        return bool(self.held)

    def __int__(self):
        return int(self.held)

    def __float__(self):
        return float(self.held)

    def __index__(self):
        return int(self.held)

    @property
    def T(self):
        return own(self.held.T)

    def get(self):
        return self.held.copy()

    def tolist(self):
        return self.held.tolist()

    def __getattr__(self, name):
        if name in FIELDS:
            return getattr(self.held, name)
        if name not in METHODS:
            raise AttributeError(f"an array of CuPy has no {name}, or none that is used here")

        def method(*given, **named):
            assert not (name == "take" and "mode" in named), "CuPy's take has no mode"
            found = getattr(self.held, name)(*map(plain, given), **named)
            return found if name == "item" else own(found)

        return method

    def view(self, dtype):
        found = self.held.view(dtype)
        assert not found.size or found.flags.aligned, "a device reads aligned numbers only"
        return own(found)


ndarray.__module__ = "strict"


def own(found):
    """Results of NumPy as arrays of this module, numbers too."""
    if isinstance(found, (tuple, list)):
        return type(found)(own(each) for each in found)
    return ndarray(np.asarray(found)) if isinstance(found, (np.ndarray, np.generic)) else found


def plain(value):
    """What NumPy computes with; its own arrays are refused."""
    if isinstance(value, (tuple, list)):
        return type(value)(plain(each) for each in value)
    if isinstance(value, ndarray):
        return value.held
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("an array of NumPy meets one of another module")
    return value


def inside(at):
    """An index; those of NumPy are taken over, as CuPy does."""
    if isinstance(at, tuple):
        return tuple(map(inside, at))
    return at.held if isinstance(at, ndarray) else at


def _same(name):
    def function(*given, **named):
        assert set(named) <= KEYWORDS.get(name, set()), f"does CuPy's {name} take {named}?"
        if name == "searchsorted":
            assert isinstance(given[1], (ndarray, int)), "CuPy looks for numbers and arrays"
        held = {key: plain(value) for key, value in named.items()}
        return own(getattr(np, name)(*map(plain, given), **held))

    return function


def asarray(value):
    """Copy to the device."""
    return value if isinstance(value, ndarray) else ndarray(np.array(value))


class fft:
    """The transforms that CuPy has, too."""

    rfft = staticmethod(lambda values, numel: own(np.fft.rfft(plain(values), numel)))
    irfft = staticmethod(lambda values, numel: own(np.fft.irfft(plain(values), numel)))


class linalg:
    """The solvers that CuPy has, too."""

    lstsq = staticmethod(lambda a, b, rcond: own(np.linalg.lstsq(plain(a), plain(b), rcond=rcond)))


globals().update({name: _same(name) for name in SAME})
sys.modules["strict"] = sys.modules[__name__]
