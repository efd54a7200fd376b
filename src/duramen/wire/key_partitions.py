"""Which partition a record goes to by its key: Kafka's default partitioner, bit for bit as its Java client has it."""

from __future__ import annotations


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's default partitioner, as a signed number (Utils.murmur2)."""
    length = len(data)
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little")
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = h * m & mask
        h ^= k
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def partition_for(key: bytes, partitions: int) -> int:
    """Kafka's choice of partition for a key: the hash without its sign, modulo the partition count."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
