"""The quantities of options: the unit of a plain number, and the allowed values."""

from commsched.errors import CommschedError
from commsched.quantity import LENGTH, NUMBER, RATE, SHARE, SIZE, TIME, Quantity

# Up to the fastest link allowed.
PORT = Quantity(kind=RATE, unit="GB/s", needs_unit=True, above=True, most=1e18)
NUMBERS = Quantity(kind=NUMBER)
POSITIVE = Quantity(kind=NUMBER, above=True)
SECONDS = Quantity(kind=TIME, unit="s", above=True)
MICROSECONDS = Quantity(kind=TIME, unit="us", above=True, believed=1.0)
MILLISECONDS = Quantity(kind=TIME, unit="ms")
PATIENCE = Quantity(kind=TIME, unit="s")
SPREAD = Quantity(kind=SHARE, believed=1.0, most=10.0)  # sigma of a log-normal factor
DENSITY = Quantity(kind=SHARE, above=True, most=1.0)
GAIN = Quantity(kind=SHARE, most=1.0)
ERROR = Quantity(kind=SHARE, above=True, believed=1.0)
PERCENT = Quantity(kind=SHARE, unit="%", believed_from=0.01)
# More than the memory of any device: 25e6 was meant in bytes.
MEGABYTES = Quantity(kind=SIZE, unit="MB", above=True, believed=1e12)
BYTES = Quantity(kind=SIZE, unit="B")
GIGABYTES = Quantity(kind=SIZE, unit="GB", above=True, believed=1e14)
INCHES = Quantity(kind=LENGTH, unit="in", least=1.0, most=60.0)
POINTS = Quantity(kind=LENGTH, unit="pt", least=3 / 72, most=100 / 72)  # inside: in

EXACT = 1e-12  # relative rounding of a number that was written as a decimal
THOUSANDS = {"k": 10**3, "M": 10**6, "G": 10**9}


def elements(text: str) -> int:
    """Read a number of float32 elements, such as 25e6 or 25M, or the bytes that they take."""
    if text[-1:] in ("B", "b"):
        return round(Quantity(kind=SIZE, needs_unit=True).read(text, "NUMEL") / 4)
    times = THOUSANDS.get(text[-1:], 1)
    value = Quantity(kind=NUMBER).read(text[:-1] if times > 1 else text, "NUMEL") * times
    if abs(value - round(value)) > EXACT * value:  # 2.01 * 10**6 is not whole in binary
        raise CommschedError(f"NUMEL is a whole number of elements, or bytes, got {text!a}")
    return round(value)
