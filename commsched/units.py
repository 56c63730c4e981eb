"""Numbers with units for people; only here seconds and bytes get prefixes."""


def seconds(value: float) -> str:
    """Format seconds as `12.3 ms`, `1.20 s`, `4.5 us`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-6:.4g} us"


def nbytes(value: float) -> str:
    """Format bytes as `1.5 MB`; decimal prefixes, as link rates have."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def count(number: float, thing: str) -> str:
    """Format `1 node`, `4 nodes`, `2 launches`, `0.667 cores`."""
    shown = f"{number:.3g}" if isinstance(number, float) else f"{number}"
    more = "es" if thing.endswith("ch") else "s"
    return f"{shown} {thing}" if number == 1 else f"{shown} {thing}{more}"


def significant(value: float) -> float:
    """Round to 12 significant digits: what a file carries, stable when read and written again."""
    return float(f"{value:.12g}")


def bits(rate: float) -> str:
    """Format B/s as networks are sold: `25 Gbit/s`."""
    for scale, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if abs(rate) * 8 >= scale:
            return f"{rate * 8 / scale:.4g} {unit}"
    return f"{rate * 8:.4g} bit/s"
