"""Records: what a field's declaration means for its file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from commsched import records
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.devices import accelerators
from commsched.machine.model import CodecRate, Device, Link, Machine, Nic
from commsched.net import file as net_file
from commsched.net.graph import Layer
from commsched.plan import file as plan_file
from commsched.quantity import NUMBER as PURE
from commsched.records import (
    EXACT,
    NOT_NEGATIVE,
    REQUIRED,
    SHARE,
    WRITTEN,
    Key,
    Stored,
    normalise,
    one_of,
    pairs,
    unit,
)
from tests.support import small_plans

Seconds = Annotated[float, unit("us", 1e-6), NOT_NEGATIVE]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A record inside another one."""

    share: Annotated[float, EXACT, SHARE] = 0.5

    def __post_init__(self) -> None:
        normalise(self)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Two keys for one field."""

    height: int
    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A record with every kind of field."""

    FORMAT = "test/1"

    name: Annotated[str, REQUIRED] = "w"
    kind: Annotated[str, one_of("a", "b")] = "a"
    first: Seconds
    again: Annotated[Seconds, Key(missing="first")] = 0.0
    maybe: Seconds | None = None
    always: Annotated[Seconds, WRITTEN] = 0.0
    left: Annotated[Part, Key("sides.left")] = Part()
    right: Annotated[Part, Key("sides.right")]
    curve: Annotated[tuple[tuple[float, float], ...], pairs(EXACT, unit("ms", 1e-3))] = ()
    parts: tuple[Part, ...] = ()
    named: Mapping[str, Part] = field(default_factory=dict)
    count: Annotated[int, Meta(ge=1)] = 1
    numel: Annotated[
        int,
        Stored(
            kind=Size,
            read=lambda size: size.height * size.width,
            write=lambda numel: Size(height=numel),
            inline=True,
        ),
    ]

    def __post_init__(self) -> None:
        normalise(self, "whole: ")


LEAST = {"format": "test/1", "name": "w", "first_us": 3, "sides": {"right": {}}, "height": 1}


def test_a_key_has_the_unit_in_its_name_and_the_field_is_in_seconds() -> None:
    read = records.read(
        Whole, LEAST | {"maybe_us": 7, "curve_ms": [[1, 2]], "height": 3, "width": 4}, "here"
    )
    assert (read.first, read.again, read.maybe) == (3e-6, 3e-6, pytest.approx(7e-6))
    assert read.curve == ((1.0, 2e-3),)
    assert read.numel == 12


def test_default_values_are_left_out_unless_they_are_marked() -> None:
    whole = Whole(first=1e-6, again=1e-6, right=Part(), numel=6)
    assert records.to_data(whole) == {
        "format": "test/1", "name": "w", "first_us": 1.0, "always_us": 0.0,
        "sides": {"right": {}}, "height": 6,
    }  # fmt: skip
    assert records.to_data(replace(whole, again=2e-6))["again_us"] == 2.0


@given(
    first=st.floats(0, 1e3),
    again=st.floats(0, 1e3),
    maybe=st.none() | st.floats(0, 1e3),
    share=st.floats(0.01, 1.0),
    curve=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1e3))),
)
def test_a_record_equals_what_its_file_gives_back(first, again, maybe, share, curve) -> None:
    part = Part(share=share)
    whole = Whole(
        first=first,
        again=again,
        maybe=maybe,
        right=part,
        curve=tuple(curve),
        parts=(part, part),
        named={"z": part, "a": part},
        numel=6,
    )
    written = records.to_data(whole)
    assert records.read(Whole, written, "here") == whole
    assert records.to_data(records.read(Whole, written, "here")) == written
    assert list(written.get("named", ())) == ["a", "z"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_us": -1}, "w.json: whole: first must be finite and at least 0, got -1e-06"),
        ({"first_us": "x"}, "w.json: first_us is a time, such as 28 us; got 'x'"),
        ({"sides": {}}, "w.json: missing required field `right` - at `.sides`"),
        ({"sides": {"right": {"share": 2}}}, "sides.right: share must be in (0, 1], got 2.0"),
        ({"named": {"x": {"share": 2}}}, "w.json: named['x']: share must be in (0, 1], got 2.0"),
        ({"parts": [{}, {"share": 0}]}, "w.json: parts[1]: share must be in (0, 1], got 0.0"),
        ({"kind": "c"}, "w.json: invalid enum value 'c' - at `.kind`; allowed: 'a', 'b'"),
        ({"count": 0}, "w.json: expected `int` >= 1 - at `.count`; it is 0"),
        ({"colour": 1}, "w.json: contains unknown field `colour`; allowed: format, name, kind"),
        ({"format": []}, "w.json: expected `str`, got `array` - at `.format`"),
    ],
)
def test_a_bad_file_is_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CommschedError) as error:
        records.read(Whole, LEAST | changes, "w.json")
    assert message in str(error.value)


@pytest.mark.parametrize("reader", [machine_file, net_file, plan_file])
@pytest.mark.parametrize("text", ['{"format": []}', '{"format": {}}', "[]", "null", '"x"'])
def test_every_reader_answers_a_strange_format(reader, text, tmp_path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CommschedError, match=r"x\.json: "):
        reader.read(tmp_path / "x.json")


def test_a_changed_record_is_checked_and_rounded_as_a_new_one_is():
    layer = Layer(name="a", forward=1.0, activation=8.0)
    changes = {"forward": 2.0000000000123e-3, "name": "b"}
    assert records.changed(layer, **changes) == replace(layer, **changes)
    with pytest.raises(CommschedError, match=r"^layer 'a': activation must be finite and at least"):
        records.changed(layer, "layer 'a': ", activation=-1.0)


@pytest.mark.parametrize("name", ["resnet50", "lstm", "gpt-moe-8"])
@pytest.mark.parametrize("scale", [0.37, 1.05])
def test_a_scaled_net_is_what_its_file_gives_back(name, scale):
    net = net_file.load(name).scaled(scale, 1.3)
    assert net_file.from_data(net_file.to_data(net), "net") == net


def test_the_hash_of_a_plan_is_computed_from_what_its_file_holds(tmp_path) -> None:
    made = small_plans.plan(small_plans.graph([30, 20]), small_plans.machine(), ["ring+dense"])
    plan_file.write(tmp_path / "p.json", made)
    assert plan_file.read(tmp_path / "p.json").hash == made.hash
    whole = replace(made, max_error=1, bound=1)  # whole numbers where the file has fractions
    assert whole.hash == replace(made, max_error=1.0, bound=1.0).hash != made.hash
    settings = {"overlap": "backward", "share": np.float64(0.5), "steps": np.int64(2)}
    plain = {"overlap": "backward", "share": 0.5, "steps": 2}
    assert replace(made, params=settings).hash == replace(made, params=plain).hash


def test_a_machine_is_rounded_as_its_file_is() -> None:
    on: Machine = small_plans.machine()
    on = replace(on, burst=1 / 3, between=replace(on.between, latency=1 / 7), overlap=1)
    assert machine_file.from_data(machine_file.to_data(on), "here") == on
    assert isinstance(on.overlap, float)


PROFILE = net_file.load("resnet50").measured
assert PROFILE is not None
WITH_QUANTITIES = (
    Link(latency=3e-6, overhead=1e-6, per_byte=1 / 3e9, source="s"),
    Nic(per_node=2, per_byte=1 / 12.5e9, turn=4096.0, source="s"),
    CodecRate(encode=1e-9, add=2e-9, decode=4e-9, fixed=1e-6, fixed_add=2e-6, fixed_decode=3e-6),
    Device(
        name="d",
        memory=16e9,
        bandwidth=900e9,
        flops=125e12,
        efficiency=0.3,
        gather=1e-9,
        fixed_gather=1e-6,
        scale=2e-9,
        fixed_scale=2e-6,
        deal=3e-8,
    ),
    machine_file.load("p3.16xlarge"),
    Layer(
        name="l",
        forward=1e-3,
        backward=2e-3,
        forward_flops=1e9,
        backward_flops=2e9,
        forward_bytes=1e6,
        backward_bytes=2e6,
        activation=3e6,
        output=4e6,
    ),
    replace(PROFILE, throughputs=()),
    PROFILE.throughputs[0],
    next(iter(accelerators().values())),
)


@pytest.mark.parametrize("record", WITH_QUANTITIES, ids=lambda record: type(record).__name__)
def test_every_number_of_a_record_may_be_a_text_with_its_unit(record):
    data, cls = records.to_data(record), type(record)
    plain = [each for each in records._fields(cls) if each.form.quantity and each.key in data]
    assert plain
    for each in plain:
        form, number = each.form.quantity, data[each.key]
        text = f"{number * 100:.12g}%" if form.kind is PURE else form.shown(number * form.scale)
        assert not text.replace(".", "").isdecimal()
        assert records.read(cls, data | {each.key: text}, "f") == record
        wrong = f"{number:.12g} kg"
        sentence = f"{each.key} is {form.kind.what}, such as {form.kind.example}; got '{wrong}'"
        with pytest.raises(CommschedError, match=re.escape(sentence)):
            records.read(cls, data | {each.key: wrong}, "f")
