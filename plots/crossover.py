"""Draws crossover.png: the fastest lossless method over density and bandwidth, by closed forms.

It is the map of `commsched price 25000000 --machine p3dn.24xlarge --nodes 4 --lanes 2 --lossless
--figure crossover.png`.
"""

from pathlib import Path

from commsched.exchange.registry import legal_methods
from commsched.machine import file
from commsched.machine.model import resized
from commsched.planner.crossover import port_rate, winners
from commsched.plot.crossover import draw
from commsched.units import nbytes

HERE = Path(__file__).resolve().parent
NUMEL = 25_000_000


def main() -> None:
    """Draw."""
    machine = resized(file.load("p3dn.24xlarge"), 4, 2)
    found = winners(NUMEL, machine, list(legal_methods(machine.everyone, lossless=True)))
    title = (
        f"fastest of lossless methods\n{NUMEL:,} elements ({nbytes(4.0 * NUMEL)}),"
        f" 8 ranks on 4 nodes of {machine.name}"
    )
    draw(found, HERE / "crossover.png", title, port_rate(machine))


if __name__ == "__main__":
    main()
