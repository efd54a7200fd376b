"""Which partition of a state topic has a group or a sink: Kafka's partitionFor, with Java's hash of its id."""

from __future__ import annotations

import codecs
from functools import lru_cache
from operator import mul
from struct import unpack

_utf_16 = codecs.getencoder("utf-16-be")
"""Here, for a codec is imported when it is first asked for, which takes a descriptor."""

_CHUNK = 256
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(_CHUNK, -1, -1))

LONGEST_KEPT = 256
"""Characters of an id whose partition is remembered; longer ones are not in use, and 16,384 of them would take 2 GB."""


def java_hash(text: str) -> int:
    """String.hashCode of the text's UTF-16 units, as an unsigned number."""
    encoded, _ = _utf_16(text, "surrogatepass")
    count = len(encoded) // 2
    units = unpack(f">{count}H", encoded)
    value = 0
    for start in range(0, count, _CHUNK):
        chunk = units[start : start + _CHUNK]
        powers = _POWERS[-len(chunk) - 1 :]
        value = (value * powers[0] + sum(map(mul, chunk, powers[1:]))) & 0xFFFFFFFF
    return value


def partition_for(name: str, partitions: int) -> int:
    """The partition of a state topic that holds what has this name (Kafka's partitionFor: abs(hash) mod count)."""
    return (_kept if len(name) <= LONGEST_KEPT else _computed)(name, partitions)


def _computed(name: str, partitions: int) -> int:
    value = java_hash(name)
    signed = value - (1 << 32) if value & 0x80000000 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


_kept = lru_cache(maxsize=16_384)(_computed)
