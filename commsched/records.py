"""Records: dataclasses whose fields say how a JSON file stores them.

The annotation of a field carries its unit, its check and its key. The reader, the writer and the
canonical form derive from it:

    latency: Annotated[float, unit("us", 1e-6), NOT_NEGATIVE]  # s; key "latency_us" in the file

The file may hold a plain number in that unit, or a text with a unit of its own, such as "1.5 ms".

The constructor of a record calls `normalise`: a record always equals what its file gives back. A
field that has its default value is left out of the file, unless it is REQUIRED or WRITTEN.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from math import isfinite
from operator import attrgetter
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, UnsetType

from commsched import files
from commsched.errors import CommschedError
from commsched.quantity import NUMBER as PLAIN
from commsched.quantity import RATE, SIZE, SPEED, TIME, WORK, Quantity
from commsched.units import significant

T = TypeVar("T")


REQUIRED = "required"  # a file without the key is refused
WRITTEN = "written"  # the key may be missing, but is always written


QUANTITIES = {  # by the unit in the key
    "": Quantity(kind=PLAIN),
    "us": Quantity(kind=TIME, unit="us"),
    "ms": Quantity(kind=TIME, unit="ms"),
    "B": Quantity(kind=SIZE, unit="B"),
    "bytes": Quantity(kind=SIZE, unit="B"),
    "GB": Quantity(kind=SIZE, unit="GB"),
    "GBps": Quantity(kind=RATE, unit="GB/s"),
    "flops": Quantity(kind=WORK, unit="flop"),
    "tflops": Quantity(kind=SPEED, unit="Tflop/s"),
}


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field; `links.inside` is key `inside` of the object `links`."""

    name: str = ""  # "": the field's name and its unit
    missing: str = ""  # if the key is missing, the field has the value of this earlier field


@dataclass(frozen=True, slots=True)
class Check:
    """A test of values, with text that follows the field's name in errors."""

    allowed: str
    test: Callable[[Any], bool]

    def __call__(self, name: str, value: Any) -> None:
        if not self.test(value):
            shown = repr(value) if isinstance(value, str) else value
            raise CommschedError(f"{name} {self.allowed}, got {shown}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The stored form of a field whose value in the file differs from its value in memory."""

    kind: Any  # type in the file
    read: Callable[[Any], Any]  # from the file's value to the field's
    write: Callable[[Any], Any]
    suffix: str = ""  # of the key: a unit
    check: Check | None = None  # of the file's value
    inline: bool = False  # the keys of `kind`, a record, replace the field's own key
    rounds: bool = False  # `normalise` writes and reads the field
    quantity: Quantity | None = None  # how a text with a unit is read


def unit(suffix: str, scale: float, short: bool = False, quantity: str = "") -> Stored:
    """Describe a number that the file stores in units of `scale`, to 12 significant digits.

    The field is the file's number times `scale`, rounded to 12 digits if `short`. `quantity`: the
    key of QUANTITIES if it is not the suffix.
    """
    return Stored(
        kind=float,
        read=lambda stored: significant(stored * scale) if short else stored * scale,
        write=lambda value: significant(value / scale) if value else 0.0,
        suffix=suffix,
        rounds=True,
        quantity=QUANTITIES[quantity or suffix],
    )


def pairs(first: Stored, second: Stored) -> Stored:
    """Describe a tuple of any number of pairs of numbers."""
    return Stored(
        kind=tuple[tuple[float, float], ...],
        read=lambda rows: tuple((first.read(a), second.read(b)) for a, b in rows),
        write=lambda rows: tuple((first.write(a), second.write(b)) for a, b in rows),
        suffix=second.suffix,
        rounds=True,
    )


def one_of(*names: str) -> Stored:
    """Describe a text that is one of these names."""
    return Stored(kind=Literal[names], read=str, write=str)


NOT_NEGATIVE = Check("must be finite and at least 0", lambda v: isfinite(v) and v >= 0)
POSITIVE = Check("must be finite and more than 0", lambda v: isfinite(v) and v > 0)
SHARE = Check("must be in (0, 1]", lambda v: 0.0 < v <= 1.0)
STATED = Check("must say where the numbers come from", lambda text: bool(text.strip()))
EXACT = Stored(kind=float, read=float, write=float, rounds=True)  # all digits
NUMBER = unit("", 1.0)
Rounded = Annotated[float, NUMBER]
Source = Annotated[str, REQUIRED, STATED]


def changed(record: T, kind: str = "", /, **values: Any) -> T:
    """Return a record with other values of some fields; only these are checked and rounded.

    Much faster than `dataclasses.replace`. For records with slots whose other rules do not depend
    on these values; errors name `kind`.
    """
    cls: Any = type(record)
    made: T = object.__new__(cls)
    put = object.__setattr__
    for name in cls.__slots__:
        put(made, name, values[name] if name in values else getattr(record, name))
    normalise(made, kind, only=values)
    return made


def check_name(kind: str, name: str) -> None:
    """Refuse a name that cannot be printed on one line."""
    if not name or not name.isprintable() or len(name) > 200:
        raise CommschedError(f"{kind} {name[:60]!a}: a name has 1 to 200 printable characters")


def normalise(
    record: Any, kind: str = "", rounds: bool = True, only: Iterable[str] | None = None
) -> None:
    """Check the fields of a new record and round them as its file does; errors name `kind`.

    only: the names of some fields.
    """
    cls: Any = type(record)
    known = _normalised(cls)
    for field in known.values() if only is None else (known[x] for x in only if x in known):
        value = getattr(record, field.name)
        if value is field.default:
            continue
        if field.check is not None:
            field.check(kind + field.name, value)
        if rounds and field.form.rounds:
            object.__setattr__(record, field.name, field.form.read(field.form.write(value)))


def read(cls: type[T], data: Any, where: str) -> T:
    """Build a record from parsed JSON; `where` names the file in errors."""
    kind: Any = cls
    stored = files.convert(data, _struct(kind), where)
    record: T = _at(where, partial(_build, kind), stored)
    return record


def to_data(record: Any) -> dict[str, Any]:
    """Turn a record into plain JSON data; `read` makes an equal record of it."""
    data: dict[str, Any] = {}
    cls: Any = type(record)
    if hasattr(cls, "FORMAT"):
        data["format"] = cls.FORMAT
    for field in _fields(cls):
        value = getattr(record, field.name)
        usual = getattr(record, field.same_as) if field.same_as else field.default
        if field.optional and value == usual:
            continue
        stored = field.form.write(value)
        if field.form.inline:
            data |= stored
            continue
        group, _, key = field.key.rpartition(".")
        (data.setdefault(group, {}) if group else data)[key] = stored
    return data


def schema(cls: Any) -> dict[str, Any]:
    """Return the JSON Schema of a record's file."""
    return msgspec.json.schema(_struct(cls))


def digest(data: dict[str, Any]) -> str:
    """Return the SHA-256 of data without its own hash: canonical JSON, keys sorted, no spaces."""
    bare = {key: value for key, value in data.items() if key != "hash"}
    from hashlib import sha256  # here: ranks start sooner without it

    return sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


class _Field(NamedTuple):
    """The stored form of one field of a record."""

    name: str
    key: str
    form: Stored
    check: Check | None
    default: Any  # MISSING: no default value
    same_as: str  # field whose value is the default; "": no field
    required: bool
    optional: bool  # left out of the file if it has its default value
    get: Callable[[Any], Any]  # the file's value, from the file's struct


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(field, *_split(hints[field.name])) for field in fields(cls))


@cache
def _normalised(cls: Any) -> dict[str, _Field]:
    return {field.name: field for field in _fields(cls) if field.check or field.form.rounds}


def _split(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type in an annotation, the annotation's extras, and whether None is allowed."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        bare, extras, nullable = _split(inner[0])
        return bare, (*extras, *hint.__metadata__), nullable
    if len(inner) == 2 and inner[1] is NoneType:
        return *_split(inner[0])[:2], True
    return hint, (), False


def _field(field: Any, bare: Any, extras: tuple[Any, ...], nullable: bool) -> _Field:
    def extra(kind: type[T]) -> T | None:
        return next((each for each in extras if isinstance(each, kind)), None)

    key, form = extra(Key) or Key(), _form(bare, extra(Stored))
    limits = tuple(each for each in extras if isinstance(each, msgspec.Meta))
    if limits:
        form = replace(form, kind=Annotated[form.kind, *limits])
    if form.quantity is not None:
        form = replace(form, kind=form.kind | str)
    name = key.name or "_".join(filter(None, (field.name, form.suffix)))
    default = field.default if field.default_factory is MISSING else field.default_factory()
    required = default is MISSING or REQUIRED in extras
    return _Field(
        name=field.name,
        key=name,
        form=_nullable(form) if nullable else form,
        check=extra(Check),
        default=default,
        same_as=key.missing,
        required=required,
        optional=not required and WRITTEN not in extras,
        get=_same if form.inline else attrgetter(name),
    )


def _form(hint: Any, stored: Stored | None = None) -> Stored:
    """Return the stored form of a type: records become objects, other types stay as they are."""
    if stored is not None:
        inner = _form(stored.kind)
        if inner.read is _same:
            return stored
        return replace(
            stored,
            kind=stored.kind if stored.inline else inner.kind,
            read=lambda value: stored.read(inner.read(value)),
            write=lambda value: inner.write(stored.write(value)),
        )
    if is_dataclass(hint):
        cls: Any = hint
        return Stored(kind=_struct(cls), read=partial(_build, cls), write=to_data)
    args, container = get_args(hint), get_origin(hint)
    if container is tuple and is_dataclass(args[0]):
        item = _form(args[0])
        return Stored(
            kind=container.__class_getitem__((item.kind, ...)),
            read=lambda rows: tuple(_at(f"[{i}]", item.read, row) for i, row in enumerate(rows)),
            write=lambda rows: [item.write(row) for row in rows],
        )
    if container is Mapping and is_dataclass(args[1]):
        item = _form(args[1])
        return Stored(
            kind=dict.__class_getitem__((args[0], item.kind)),
            read=lambda rows: {k: _at(f"[{k!a}]", item.read, row) for k, row in rows.items()},
            write=lambda rows: {k: item.write(row) for k, row in sorted(rows.items())},
        )
    return Stored(kind=hint, read=_same, write=_same)


def _same(value: Any) -> Any:
    return value


def _nullable(form: Stored) -> Stored:
    return replace(
        form,
        kind=form.kind | None,
        read=lambda value: None if value is None else form.read(value),
        write=lambda value: None if value is None else form.write(value),
    )


@cache
def _struct(cls: Any) -> Any:
    """Return the type of a record in its file."""
    return _defined(cls.__name__, _keys(cls))


def _keys(cls: Any) -> dict[str, Any]:
    """Return each key of a record with its type, and UNSET if the key may be missing."""
    keys: dict[str, Any] = {"format": (Literal[cls.FORMAT],)} if hasattr(cls, "FORMAT") else {}
    for field in _fields(cls):
        kind = field.form.kind
        if field.form.inline:
            keys |= _keys(kind)
            continue
        group, _, key = field.key.rpartition(".")
        place = keys.setdefault(group, {}) if group else keys
        place[key] = (kind,) if field.required else (kind | UnsetType, UNSET)
    for key in getattr(cls, "GONE", ()):  # of older versions: read and ignored
        keys[key] = (Any, UNSET)
    return keys


def _defined(name: str, keys: dict[str, Any]) -> Any:
    rows = [
        (key, _defined(key, kind)) if isinstance(kind, dict) else (key, *kind)
        for key, kind in keys.items()
    ]
    return msgspec.defstruct(name, rows, forbid_unknown_fields=True, frozen=True, kw_only=True)


def _build(cls: Any, stored: Any) -> Any:
    """Build a record from its file's struct."""
    values: dict[str, Any] = {}
    for field in _fields(cls):
        value, form = field.get(stored), field.form
        if value is UNSET:
            if field.same_as:
                values[field.name] = values.get(field.same_as, field.default)
            continue
        if isinstance(value, str) and form.quantity is not None:
            text = form.quantity.parsed(value, field.key)
            value = significant(text / form.quantity.scale)
        if form.check is not None and value is not None:
            form.check(field.key, value)
        values[field.name] = value if form.read is _same else _at(field.key, form.read, value)
    return cls(**values)


def _at(place: str, read: Callable[[Any], Any], value: Any) -> Any:
    """Read the value at a place in a file; errors name the place."""
    try:
        return read(value)
    except CommschedError as error:
        if str(error).startswith(place):
            raise
        between = "" if str(error).startswith("[") else ": "
        raise CommschedError(f"{place}{between}{error}") from None
