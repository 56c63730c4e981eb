"""Records: dataclasses whose fields say how a JSON file stores them.

The annotation of a field carries its unit, its check and its key. The reader, the writer and the
canonical form derive from it:

    latency: Annotated[float, unit("us", 1e-6), NOT_NEGATIVE]  # s; key "latency_us" in the file

The constructor of a record calls `normalise`: a record always equals what its file gives back. A
field that has its default value is left out of the file, unless it is marked.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, UnsetType

from commsched import files
from commsched.errors import CommschedError
from commsched.units import significant

T = TypeVar("T")


class Mark(Enum):
    """What a file does about a field that has a default value."""

    REQUIRED = 1  # the key must be there, and is always written
    WRITTEN = 2  # the key may be missing, and is always written


REQUIRED, WRITTEN = Mark


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field; `links.inside` is key `inside` of the object `links`."""

    name: str


@dataclass(frozen=True, slots=True)
class SameAs:
    """A key that is missing means the value of another field, which comes earlier."""

    field: str


@dataclass(frozen=True, slots=True)
class Check:
    """What is allowed, as a sentence goes on after the field's name."""

    allowed: str
    test: Callable[[Any], bool]

    def __call__(self, name: str, value: Any) -> None:
        if not self.test(value):
            shown = repr(value) if isinstance(value, str) else value
            raise CommschedError(f"{name} {self.allowed}, got {shown}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How a file stores a field, where that differs from what the field holds."""

    kind: Any  # type in the file
    read: Callable[[Any], Any]  # from the file's value to the field's
    write: Callable[[Any], Any]
    suffix: str = ""  # of the key: a unit
    check: Check | None = None  # of the file's value
    inline: bool = False  # the keys of `kind`, a record, stand among the keys around the field
    rounds: bool = False  # normalise the field by writing and reading it


def unit(suffix: str, scale: float) -> Stored:
    """A number that the file stores in units of `scale`, to 12 significant digits."""
    return Stored(
        kind=float,
        read=lambda stored: stored * scale,
        write=lambda value: significant(value / scale) if value else 0.0,
        suffix=suffix,
        rounds=True,
    )


def named(names: tuple[str, ...]) -> Stored:
    """A text that is one of some names."""
    return Stored(kind=Literal[names], read=str, write=str)


NOT_NEGATIVE = Check("must be finite and at least 0", lambda v: isfinite(v) and v >= 0)
POSITIVE = Check("must be finite and more than 0", lambda v: isfinite(v) and v > 0)
SHARE = Check("must be in (0, 1]", lambda v: 0.0 < v <= 1.0)
Rounded = Annotated[float, unit("", 1.0)]
Source = Annotated[
    str, REQUIRED, Check("must say where the numbers come from", lambda text: bool(text.strip()))
]


def check_name(kind: str, name: str) -> None:
    """Refuse a name that cannot be printed on a line."""
    if not name or not name.isprintable() or len(name) > 200:
        raise CommschedError(f"{kind} {name[:60]!a}: a name has 1 to 200 printable characters")


def normalise(record: Any, kind: str = "", rounds: bool = True) -> None:
    """Check the fields of a new record and round them as its file does; errors name `kind`."""
    cls: Any = type(record)
    for name, default, check, form in _numbers(cls):
        value = getattr(record, name)
        if value is default:
            continue
        if check is not None:
            check(kind + name, value)
        if rounds and form.rounds:
            object.__setattr__(record, name, form.read(form.write(value), ""))


def read(cls: type[T], data: Any, where: str) -> T:
    """Build a record from parsed JSON; `where` names the file in errors."""
    record: Any = cls
    stored = files.convert(data, _struct(record), where)
    try:
        built: T = _build(record, stored, "")
        return built
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None


def to_data(record: Any) -> dict[str, Any]:
    """Turn a record into plain JSON data; `read` makes an equal record of it."""
    data: dict[str, Any] = {}
    cls: Any = type(record)
    if hasattr(cls, "FORMAT"):
        data["format"] = cls.FORMAT
    for field in _fields(cls):
        value = getattr(record, field.name)
        usual = getattr(record, field.same_as) if field.same_as else field.default
        if not field.always and value == usual:
            continue
        stored = field.form.write(value)
        if field.inline:
            data |= stored
            continue
        group, _, key = field.key.rpartition(".")
        (data.setdefault(group, {}) if group else data)[key] = stored
    return data


def digest(data: dict[str, Any]) -> str:
    """SHA-256 of data without its own hash: canonical JSON, keys sorted, no spaces."""
    bare = {key: value for key, value in data.items() if key != "hash"}
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def _same(value: Any, path: str = "") -> Any:
    return value


class _Form(NamedTuple):
    """How a file stores values of a type."""

    kind: Any  # type in the file
    read: Callable[[Any, str], Any] = _same  # of a value and its place in the file
    write: Callable[[Any], Any] = _same
    suffix: str = ""
    check: Check | None = None  # of the file's value
    rounds: bool = False


class _Field(NamedTuple):
    """How a file stores a field of a record."""

    name: str
    key: str
    form: _Form
    check: Check | None
    default: Any  # MISSING: no default value
    same_as: str  # field; "": no field
    required: bool
    always: bool  # written even if it has its default value
    inline: Any  # record class whose keys stand for this field, or None
    get: Callable[[Any], Any]  # from the file's struct


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(field, hints[field.name]) for field in fields(cls))


@cache
def _numbers(cls: Any) -> list[tuple[str, Any, Any, _Form]]:
    """What `normalise` looks at: name, default value, check and form of fields."""
    return [
        (field.name, field.default, field.check, field.form)
        for field in _fields(cls)
        if field.check is not None or field.form.rounds
    ]


def _field(field: Any, hint: Any) -> _Field:
    extras, form = _extras(hint), _form(hint)
    key, same, stored = _first(extras, Key), _first(extras, SameAs), _first(extras, Stored)
    name = key.name if key else f"{field.name}_{form.suffix}" if form.suffix else field.name
    default = field.default if field.default_factory is MISSING else field.default_factory()
    required = default is MISSING or REQUIRED in extras
    inline = stored.kind if stored and stored.inline else None
    return _Field(
        name=field.name,
        key=name,
        form=form,
        check=_first(extras, Check),
        default=default,
        same_as=same.field if same else "",
        required=required,
        always=required or WRITTEN in extras,
        inline=inline,
        get=_same if inline else attrgetter(name),
    )


def _first(extras: tuple[Any, ...], kind: type[T]) -> T | None:
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def _extras(hint: Any) -> tuple[Any, ...]:
    """What the annotation of a field carries, also inside `X | None`."""
    if get_origin(hint) is Annotated:
        return (*_extras(get_args(hint)[0]), *hint.__metadata__)
    return () if _some(hint) is None else _extras(_some(hint))


def _some(hint: Any) -> Any:
    """X of `X | None`; None for other types."""
    inner = get_args(hint)
    optional = get_origin(hint) in (Union, UnionType) and len(inner) == 2 and NoneType in inner
    return next(each for each in inner if each is not NoneType) if optional else None


def _form(hint: Any) -> _Form:
    record = is_dataclass(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(_form(inner[0]), hint.__metadata__)
    if hint is float:
        return _Form(float, write=float, rounds=True)
    if record:
        return _Form(_struct(hint), read=partial(_build, hint), write=to_data)
    if _some(hint) is not None:
        return _optional(_form(_some(hint)))
    if origin is tuple:
        forms = [_form(each) for each in inner if each is not Ellipsis]
        if any(form.write is not _same for form in forms):
            return _row(forms, Ellipsis in inner)
    if origin is Mapping:
        return _mapping(inner[0], _form(inner[1]), is_dataclass(inner[1]))
    return _Form(hint)


def _annotated(form: _Form, extras: tuple[Any, ...]) -> _Form:
    stored = _first(extras, Stored)
    if stored is not None:
        inner = _form(stored.kind)
        plain = inner.read is _same
        form = _Form(
            inner.kind,
            read=lambda value, path: stored.read(value if plain else inner.read(value, path)),
            write=stored.write if plain else lambda value: inner.write(stored.write(value)),
            suffix=stored.suffix,
            check=stored.check,
            rounds=stored.rounds,
        )
    limits = tuple(extra for extra in extras if isinstance(extra, msgspec.Meta))
    return form._replace(kind=Annotated[form.kind, *limits]) if limits else form


def _optional(form: _Form) -> _Form:
    return form._replace(
        kind=form.kind | None,
        read=lambda value, path: None if value is None else form.read(value, path),
        write=lambda value: None if value is None else form.write(value),
    )


def _row(forms: list[_Form], repeated: bool) -> _Form:
    """A tuple with a value of each form, or with any number of values of one form."""
    origin: Any = tuple
    kinds = [form.kind for form in forms]

    def each(values: Any) -> Any:
        return zip(forms * len(values) if repeated else forms, values, strict=True)

    return _Form(
        origin[(*kinds, ...) if repeated else tuple(kinds)],
        read=lambda values, path: tuple(
            form.read(value, f"{path}[{i}]") for i, (form, value) in enumerate(each(values))
        ),
        write=lambda values: [form.write(value) for form, value in each(values)],
        suffix=next((form.suffix for form in forms if form.suffix), ""),
        rounds=any(form.rounds for form in forms),
    )


def _mapping(key: Any, form: _Form, ordered: bool) -> _Form:
    """Values by key, written in the order of their keys if `ordered`."""
    origin: Any = dict
    items = sorted if ordered else list
    return _Form(
        origin[key, form.kind],
        read=lambda values, path: {k: form.read(v, f"{path}[{k!a}]") for k, v in values.items()},
        write=lambda values: {k: form.write(v) for k, v in items(values.items())},
        rounds=form.rounds,
    )


@cache
def _struct(cls: Any) -> Any:
    """The type of a record in its file."""
    return _defined(cls.__name__, _keys(cls))


def _keys(cls: Any) -> dict[str, Any]:
    """The keys of a record with what `defstruct` takes besides; a dict for keys with a dot."""
    keys: dict[str, Any] = {}
    if hasattr(cls, "FORMAT"):
        keys["format"] = (Literal[cls.FORMAT],)
    for field in _fields(cls):
        if field.inline:
            keys |= _keys(field.inline)
            continue
        group, _, key = field.key.rpartition(".")
        kind: Any = field.form.kind
        place = keys.setdefault(group, {}) if group else keys
        place[key] = (kind,) if field.required else (kind | UnsetType, UNSET)
    return keys


def _defined(name: str, keys: dict[str, Any]) -> Any:
    rows = [
        (key, _defined(key, kind)) if isinstance(kind, dict) else (key, *kind)
        for key, kind in keys.items()
    ]
    return msgspec.defstruct(name, rows, forbid_unknown_fields=True, frozen=True, kw_only=True)


def _build(cls: Any, stored: Any, path: str) -> Any:
    """Build a record from its file's struct; errors name `path`, its place in the file."""
    values: dict[str, Any] = {}
    try:
        for field in _fields(cls):
            value = field.get(stored)
            if value is UNSET:
                if field.same_as in values:
                    values[field.name] = values[field.same_as]
                continue
            read, check = field.form.read, field.form.check
            if check is not None and value is not None:
                check(field.key.rpartition(".")[2], value)
            if read is not _same:
                value = read(value, f"{path}.{field.key}" if path else field.key)
            values[field.name] = value
        return cls(**values)
    except CommschedError as error:
        if str(error).startswith(path):  # it names the place already
            raise
        raise CommschedError(f"{path}: {error}") from None
