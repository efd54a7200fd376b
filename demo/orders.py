"""The input of `make demo-exactly-once`: orders that a shop's customers might have made, always the same ones."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from typing import NamedTuple

CUSTOMERS = 900
GOODS = {"tea": 490, "rice": 250, "soap": 320, "lamp": 2_990, "chair": 7_900, "boots": 9_500, "bicycle": 45_900}
"""Prices in cents."""


class Order(NamedTuple):
    """One event: row counts from 1; key is the customer; value is JSON."""

    row: int
    key: bytes
    value: bytes

    @property
    def checksum(self) -> int:
        """CRC-32 over the value, to compare with what is read back."""
        return zlib.crc32(self.value)


def orders(count: int) -> Iterator[Order]:
    """So many, in the order in which they came in."""
    chance = random.Random(2013)
    names, prices = list(GOODS), list(GOODS.values())
    for row in range(1, count + 1):
        goods = chance.randrange(len(names))
        pieces = 1 + int(chance.expovariate(0.9))
        cents = pieces * prices[goods]
        what = {"order": row, "goods": names[goods], "pieces": pieces, "cents": cents}
        yield Order(row, b"customer-%03d" % chance.randrange(CUSTOMERS), json.dumps(what).encode())
