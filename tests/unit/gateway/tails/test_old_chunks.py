"""Chunks of old records: who gets which, what is of another history, what goes when memory ends."""

from __future__ import annotations

from duramen.dlsn import Dlsn
from duramen.gateway.streams.stream_page import BatchPlace, StreamPage
from duramen.gateway.streams.stream_position import START, position_after
from duramen.gateway.tails.old_chunks import ChunkKey, OldChunks
from duramen.gateway.tails.page_forms import MessageForm
from duramen.gateway.tails.tail_page import TailPage
from duramen.wire.batch import Record

KEY = ChunkKey(b"a", 0, 3)
TEXT = MessageForm("application/json")
BATCH = 4


def chunk(start: Dlsn, end: int) -> TailPage:
    """Records from a position on, in batches of four of the leader epoch 2; a value is the last digit of its offset."""
    offsets = range(start.offset, end)
    records = [Record(n, 0, None, b"%d" % (n % 10), []) for n in offsets]
    places = [BatchPlace(2, n // BATCH * BATCH) for n in offsets]
    last = end - 1
    return TailPage(start, StreamPage(records, places, position_after(2, last // BATCH * BATCH, last), False, False), 0)


def test_who_stands_inside_a_chunk_gets_the_rest_of_it() -> None:
    chunks = OldChunks(1 << 20)
    assert chunks.find(KEY, START) is None
    first, second = chunk(START, 8), chunk(position_after(2, 4, 7), 12)
    chunks.add(KEY, first)
    chunks.add(KEY, second)
    assert chunks.find(KEY, START) is first
    assert chunks.find(KEY, second.start) is second
    for position in (position_after(2, 4, 5), Dlsn(3, 4, 2)):
        found = chunks.find(KEY, position)
        assert found is not None
        assert (found.body(TEXT), found.position) == (b"[6,7]", first.position)
    assert chunks.find(KEY, second.position) is None
    assert chunks.find(KEY._replace(leader_epoch=4), START) is None


def test_a_position_of_another_history_finds_nothing() -> None:
    chunks = OldChunks(1 << 20)
    chunks.add(KEY, chunk(START, 8))
    assert chunks.find(KEY, Dlsn(2, 4, 2)) is None  # another epoch
    assert chunks.find(KEY, Dlsn(3, 5, 1)) is None  # another batch
    assert chunks.find(KEY, Dlsn(2, 4, 0)) is None


def test_what_was_not_used_for_longest_goes_and_forms_count() -> None:
    room = 3 * chunk(START, 8).weight
    chunks = OldChunks(room)
    starts = [START, *(position_after(2, n - BATCH, n - 1) for n in (8, 16, 24))]
    for start in starts[:3]:
        chunks.add(KEY, chunk(start, start.offset + 8))
    assert (len(chunks), chunks.held_bytes) == (3, room)
    assert chunks.find(KEY, START) is not None
    chunks.add(KEY, chunk(starts[3], 32))
    assert [chunks.find(KEY, start) is not None for start in starts] == [True, False, True, True]
    used = chunks.find(KEY, START)
    assert used is not None
    used.body(TEXT)
    assert chunks.held_bytes <= room
    assert len(chunks) == 2
    used.events(TEXT)
    chunks.truncate(KEY, 100)
    assert (len(chunks), chunks.held_bytes) == (0, 0)
    used.frame(MessageForm("text/plain"), True)  # which is held by nobody, and counts nowhere
    assert chunks.held_bytes == 0


def test_truncated_chunks_go() -> None:
    chunks = OldChunks(1 << 20)
    second = chunk(position_after(2, 4, 7), 12)
    chunks.add(KEY, chunk(START, 8))
    chunks.add(KEY, second)
    chunks.add(KEY, second)
    assert len(chunks) == 2
    chunks.truncate(KEY, 8)
    assert len(chunks) == 1
    assert chunks.find(KEY, START) is None
    assert chunks.find(KEY, second.start) is second
