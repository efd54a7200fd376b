"""Which leader epoch wrote which offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import StorageError
from duramen.storage.segment.leader_epochs import EpochCache


def cache(*pairs: tuple[int, int]) -> EpochCache:
    result = EpochCache()
    for epoch, start in pairs:
        result.assign(epoch, start)
    return result


def test_end_offsets_are_where_the_next_epoch_starts() -> None:
    epochs = cache((2, 0), (4, 10), (7, 25))
    assert epochs.latest == 7
    assert epochs.end_offset_for(7, 40) == (7, 40)
    assert epochs.end_offset_for(6, 40) == (4, 25)
    assert epochs.end_offset_for(4, 40) == (4, 25)
    assert epochs.end_offset_for(2, 40) == (2, 10)
    assert epochs.end_offset_for(1, 40) == (1, 0)
    assert epochs.end_offset_for(8, 40) == (-1, -1)
    assert epochs.end_offset_for(-1, 40) == (-1, -1)
    assert cache().end_offset_for(0, 0) == (-1, -1)


def test_the_epoch_of_a_record() -> None:
    epochs = cache((2, 5), (4, 10))
    assert [epochs.epoch_at(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 2, 2, 4, 4]


def test_what_a_new_epoch_contradicts_is_dropped() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    epochs.assign(6, 10)
    assert epochs.entries == [(1, 0), (6, 10)]
    epochs.assign(6, 30)
    assert epochs.entries == [(1, 0), (6, 10)]
    epochs.assign(2, 40)
    assert epochs.entries == [(1, 0), (2, 40)]
    assert epochs.latest == 2


def test_a_record_says_where_its_epoch_is() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    for epoch, offset in ((1, 9), (3, 19), (5, 20), (-1, 4)):
        epochs.hold(epoch, offset)
    assert epochs.entries == [(1, 0), (3, 10), (5, 20)]
    epochs.hold(3, 8)
    epochs.hold(4, 15)
    assert (epochs.entries, epochs.latest) == ([(1, 0), (3, 8), (4, 15), (5, 20)], 5)
    epochs.hold(3, 30)
    assert (epochs.entries, epochs.latest) == ([(1, 0), (3, 8)], 3)
    epochs.hold(6, 8)
    assert epochs.entries == [(1, 0), (6, 8)]


def test_cuts_at_both_ends() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    epochs.changed = False
    epochs.truncate_from_end(21)
    epochs.truncate_from_start(0)
    assert not epochs.changed
    epochs.truncate_from_end(20)
    assert (epochs.entries, epochs.latest, epochs.changed) == ([(1, 0), (3, 10)], 3, True)
    epochs.truncate_from_start(15)
    assert epochs.entries == [(3, 15)]
    epochs.truncate_from_end(0)
    assert (epochs.entries, epochs.latest) == ([], -1)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=12))
def test_the_file_says_the_same(pairs: list[tuple[int, int]]) -> None:
    epochs = cache(*pairs)
    again = EpochCache.decode(epochs.encode())
    assert again.entries == epochs.entries
    assert again.latest == epochs.latest
    assert not again.changed


def test_kafkas_text() -> None:
    assert cache((0, 0), (3, 7)).encode() == b"0\n2\n0 0\n3 7\n"


@pytest.mark.parametrize(
    "text",
    [b"", b"0", b"0\n1\n", b"1\n0\n", b"0\n1\n0 0", b"0\n1\nx 0\n", b"0\n2\n3 0\n3 5\n", b"0\n2\n1 9\n2 5\n", b"\xff"],
)
def test_damage_is_noticed(text: bytes) -> None:
    with pytest.raises(StorageError):
        EpochCache.decode(text)
