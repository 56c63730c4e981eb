"""What the driver says of the only device."""


class CUDARuntimeError(RuntimeError):
    """Never raised."""


def getDeviceCount():
    return 1


def getDeviceProperties(number):
    return {"name": b"NumPy", "totalGlobalMem": 2**34}


def driverGetVersion():
    return 13000


def runtimeGetVersion():
    return 13000
