"""Draws gpu.png: codecs, messages and steps on a GPU, from a recorded `commsched bench gpu`.

It reads traces/gpu/gpu.json, which `commsched bench gpu -o traces/gpu` leaves.
"""

from pathlib import Path

from commsched.lab.bench.gpu_report import read
from commsched.plot.gpu import draw

HERE = Path(__file__).resolve().parent


if __name__ == "__main__":
    draw(read(HERE.parent / "traces" / "gpu" / "gpu.json"), HERE / "gpu.png")
