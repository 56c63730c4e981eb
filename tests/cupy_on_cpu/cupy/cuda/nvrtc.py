"""The compiler of this processor behind the functions of CuPy's NVRTC."""

from pathlib import Path


class NVRTCError(RuntimeError):
    """Never raised."""


def getVersion():
    return 0, 0


def getSupportedArchs():
    return (90,)


def createProgram(code, name, headers, include_names):
    return [code]


def compileProgram(program, options):
    from tests.cuda_on_cpu import cpu

    program[0] = cpu.built(program[0])


def getCUBIN(program):
    return Path(program[0]).read_bytes()


def destroyProgram(program):
    """Nothing is left."""
