"""Quantities with units: a law for every unit, one sentence for what is refused."""

import argparse
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import quantity
from commsched.cli import main as cli
from commsched.cli.main import main
from commsched.cli.options import Reader
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.quantities import THOUSANDS, elements
from commsched.quantity import KINDS, LENGTH, RATE, SHARE, SIZE, TIME, Quantity, QuantityKind

UNITS = [(kind, unit) for kind in KINDS for unit in kind.units]


@given(of=st.sampled_from(UNITS), value=st.floats(1e-9, 1e12), gap=st.sampled_from(["", " ", "  "]))
def test_a_quantity_is_read_as_it_was_written(
    of: tuple[QuantityKind, str], value: float, gap: str
) -> None:
    kind, unit = of
    written = quantity.text(kind, value, unit).replace(" ", gap)
    got = Quantity(kind=kind).read(written, "x")
    assert got == pytest.approx(value, rel=1e-11)  # the text has 12 digits
    again = quantity.text(kind, got, unit)
    assert Quantity(kind=kind).read(again, "x") == pytest.approx(got, rel=1e-15)


@given(of=st.sampled_from(UNITS), number=st.integers(1, 9999))
def test_case_matters_only_where_two_units_differ_in_case_alone(
    of: tuple[QuantityKind, str], number: int
) -> None:
    kind, unit = of
    scales = {scale for name, scale in kind.units.items() if name.lower() == unit.lower()}
    for spelled in {unit.lower(), unit.upper()} - set(kind.units):
        if len(scales) == 1:
            assert Quantity(kind=kind).read(f"{number}{spelled}", "x") == pytest.approx(
                number * kind.units[unit], rel=1e-15
            )
        else:  # gb/s may be Gb/s or GB/s
            with pytest.raises(CommschedError, match="write bit/s or B/s"):
                Quantity(kind=kind).read(f"{number}{spelled}", "x")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (RATE, "25 Gbit/s", 3.125e9),
        (RATE, "25gbit", 3.125e9),
        (RATE, "3.1 GB/s", 3.1e9),
        (RATE, "200mbit", 25e6),
        (RATE, "200 Mb/s", 25e6),
        (TIME, "28 us", 28e-6),
        (TIME, "28 \N{MICRO SIGN}s", 28e-6),
        (TIME, "1.5 ms", 1.5e-3),
        (SHARE, "5%", 0.05),
        (SIZE, "16GB", 16e9),
        (SIZE, "25MB", 25e6),
        (SIZE, "25M", 25e6),
        (SIZE, "16 GiB", 2.0**34),
    ],
)
def test_what_people_write(kind: QuantityKind, text: str, value: float) -> None:
    assert Quantity(kind=kind).read(text, "x") == value


@given(text=st.text(max_size=20))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    for kind in KINDS:
        sentence = ""
        try:
            assert Quantity(kind=kind).read(text, "x") >= 0
        except CommschedError as error:
            sentence = str(error)
        assert "\n" not in sentence


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


DECLARED = [
    (parser.prog, action)
    for parser in parsers(cli._parser(()))
    for action in parser._actions
    if action.type is not None
]
QUANTITIES = [(prog, action) for prog, action in DECLARED if isinstance(action.type, Reader)]


def test_every_number_of_the_command_line_is_a_count_or_a_quantity() -> None:
    others = {action.type for _, action in DECLARED if not isinstance(action.type, Reader)}
    read = {get_type_hints(t)["return"] if isfunction(t) else t for t in others}
    assert read <= {str, int, Path}
    assert {action.dest for _, action in QUANTITIES} >= {
        *("bucket", "memory", "max_error", "density", "fail_above", "jitter", "time_limit"),
        *("timeout", "seconds", "patience", "compute", "expect", "scale", "stretch"),
    }


@pytest.mark.parametrize(
    ("prog", "action"), QUANTITIES, ids=[f"{p} {a.dest}" for p, a in QUANTITIES]
)
def test_every_option_that_holds_a_quantity_takes_units(prog: str, action: argparse.Action) -> None:
    reader = action.type
    assert isinstance(reader, Reader)
    assert reader.name in action.option_strings
    form = reader.quantity
    small = {RATE: "25 Mbit/s", TIME: "2500 us", SIZE: "2500 kB", LENGTH: "90pt"}.get(
        form.kind, "25%"
    )
    plain = {
        "us": "2500",
        "ms": "2.5",
        "s": "0.0025",
        "MB": "2.5",
        "GB": "0.0025",
        "B": "2.5e6",
        "%": "25",
        "in": "1.25",
        "pt": "90",
    }
    bare = plain.get(form.unit, "0.25")
    if form.needs_unit:
        with pytest.raises(CommschedError, match=f"{reader.name} is {form.kind.what}, such as "):
            reader(bare)
    else:
        assert reader(small) == pytest.approx(reader(bare), rel=1e-15)
    kind = form.kind
    assert kind is quantity.NUMBER or f"({kind.what}, such as" in (action.help or "")
    wrong = "25 kg"
    with pytest.raises(CommschedError) as caught:
        reader(wrong)
    sentence = f"{reader.name} is {kind.what}, such as {kind.example}; got '{wrong}'"
    assert str(caught.value) == sentence


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    out = capsys.readouterr()
    assert not out.out
    assert out.err.count("\n") == 1
    return out.err.removeprefix("commsched: ").rstrip()


PLAN = ["plan", "resnet50", "--machine", "p3.16xlarge", "-o", "p.json"]


def test_the_sentences_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused([*PLAN, "--bucket", "25 Gbit/s"], capsys) == (
        "--bucket is a size, such as 25MB; got '25 Gbit/s'"
    )
    assert refused([*PLAN, "--max-error", "5"], capsys) == (
        "--max-error 5 would be 500%: write 5%, or 500% if you mean it"
    )
    assert "if you mean it" in refused([*PLAN, "--bucket", "25e6"], capsys)
    assert "--memory must be" in refused([*PLAN, "--memory", "0"], capsys)


def test_a_share_of_a_codec_may_be_a_percentage() -> None:
    for name in ("topk:1%", "randomk:2.5%"):
        codec, _, percent = name.partition(":")
        assert CODECS[name].name == CODECS[f"{codec}:{float(percent[:-1]) / 100}"].name


def test_binary_prefixes_of_bits_are_of_bits() -> None:
    assert Quantity(kind=RATE).read("8 Gib/s", "x") == 2.0**30
    with pytest.raises(CommschedError):
        Quantity(kind=RATE).read("8 gib/s", "x")  # bits or bytes


@given(st.integers(1, 10**7), st.sampled_from(["k", "M", "G"]))
def test_numbers_of_elements_may_have_a_decimal_point(hundredths, letter):
    text = f"{hundredths // 100}.{hundredths % 100:02}{letter}"
    assert elements(text) == hundredths * THOUSANDS[letter] // 100
    with pytest.raises(CommschedError, match="a whole number of elements"):
        elements("1.5")
