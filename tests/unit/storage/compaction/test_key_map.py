"""The map of last offsets: bounded, exact, full when it is full."""

from __future__ import annotations

from random import Random

import pytest

from duramen.storage.compaction.key_map import SLOT_BYTES, OffsetMap


@pytest.mark.parametrize("entries", [1, 50, 5000])
def test_it_knows_the_last_offset_of_every_key(entries: int) -> None:
    random = Random(entries)
    offsets = OffsetMap(1 << 20, 0.9, entries, b"topic")
    known: dict[bytes, int] = {}
    for offset in range(3 * entries):
        key = random.randbytes(2)[: random.randint(0, 2)] + b"%d" % random.randrange(entries)
        if key in known or len(known) < entries:
            known[key] = offset
            assert offsets.put(key, offset)
    assert offsets.entries == len(known)
    assert {key: offsets.get(key) for key in known} == known
    assert offsets.get(b"never seen") == -1
    assert offsets.size <= 1 << 20


def test_a_small_pass_takes_little_memory() -> None:
    assert OffsetMap(128 << 20, 0.9, 10).size < 1000
    assert OffsetMap(128 << 20, 0.9, 0).size < 1000


def test_it_never_takes_more_than_it_may() -> None:
    offsets = OffsetMap(100 * SLOT_BYTES, 0.9, 10**9)
    assert offsets.size <= 100 * SLOT_BYTES
    taken = sum(offsets.put(b"%d" % number, number) for number in range(200))
    assert 80 <= taken <= 90
    assert offsets.fill == 1.0
    assert not offsets.put(b"one more", 1)
    assert offsets.put(b"3", 777), "a key that is there needs no room"
    assert offsets.get(b"3") == 777
    assert offsets.get(b"one more") == -1


def test_offset_zero_is_an_offset() -> None:
    offsets = OffsetMap(1000, 0.9, 5)
    offsets.put(b"", 0)
    assert offsets.get(b"") == 0
