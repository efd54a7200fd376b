"""Keys go to the partitions that Kafka's Java client chooses: the vectors are those of its own UtilsTest."""

from __future__ import annotations

import pytest

from duramen.wire.key_partitions import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partition_for(key, 7) == (hashed & 0x7FFFFFFF) % 7
