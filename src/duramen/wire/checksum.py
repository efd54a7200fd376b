"""CRC-32C, from the extension module inside the `crc32c` package.

The package's own `__init__` also loads its command line and the metadata of installed packages, for which a node that
starts has no time. Where the extension is not where it is expected, the package is imported as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

PACKAGE = "crc32c"
EXTENSION = "crc32c._crc32c"


def load(extension: str = EXTENSION) -> Callable[..., int]:
    """The function; ImportError where the package is not installed."""
    package = PathFinder.find_spec(PACKAGE)
    spec = None if package is None else PathFinder.find_spec(extension, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        module = import_module(PACKAGE)
    else:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


crc32c = load()
"""(data, crc so far = 0) -> CRC-32C of all the bytes."""


def linear(image: Callable[[int], int]) -> Callable[[int], int]:
    """A quick form of a map of sums that is linear over GF(2), as what bytes behind it make of a CRC.

    `image` is asked for the 32 sums of a single bit.
    """
    tables = []
    for byte in range(4):
        table = [0]
        for bit in range(8):
            found = image(1 << 8 * byte + bit)
            table += [found ^ each for each in table]
        tables.append(table)
    lowest, low, high, highest = tables

    def mapped(crc: int) -> int:
        return lowest[crc & 255] ^ low[crc >> 8 & 255] ^ high[crc >> 16 & 255] ^ highest[crc >> 24]

    return mapped
