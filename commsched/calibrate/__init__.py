"""Calibration: ranks measure their machine, which is then fitted to exchanges like a training's."""
