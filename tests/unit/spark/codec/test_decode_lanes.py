"""Long batches are entered in the middle, and whatever looks like a record there but is none does no harm."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds.batch_strategies import LIMIT, thinned

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode import Decoder, RecordFilter, lanes
from duramen.spark.codec.decode.arena import Arena, ArenaChunk
from duramen.spark.codec.decode.batches import read_headers
from duramen.wire.batch import CRC_START, HEADER_SIZE, NewRecord, build_batch, parse_header, records
from duramen.wire.checksum import crc32c
from duramen.wire.compression import LZ4, NONE

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])


@pytest.fixture(autouse=True)
def small_chunks_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_WORTH_ROWS", 1)


def some_records(count: int, value: bytes = b"some words of a value ") -> list[NewRecord]:
    return [(b"%d" % number, value * (1 + number % 5), (), 10**12 + 90 * number) for number in range(count)]


def imitation(first: int, count: int) -> bytes:
    """The bytes of records themselves, those with these deltas of some batch, as a value may hold them."""
    payload = np.frombuffer(build_batch([(None, b"x" * 300, (), 5)] * (first + count)), np.uint8)[HEADER_SIZE:].copy()
    at = [0]
    while at[-1] < len(payload):
        at.append(at[-1] + int(lanes.JUMPS[lanes.pairs(payload)[at[-1]]]))
    return payload[at[first] :].tobytes()


def chunk_of(batches: list[bytearray]) -> ArenaChunk:
    data = memoryview(b"".join(batches))
    (chunk,) = Arena(LIMIT).chunks(read_headers(data), data)
    return chunk


def true_starts(chunk: ArenaChunk) -> dict[int, int]:
    """By the position at which a record begins, how many records of its batch lie before; by walking in plain steps."""
    found = {}
    for start, end in zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True):
        at, before = start, 0
        while at < end:
            found[at] = before
            at += int(lanes.JUMPS[lanes.pairs(chunk.arena)[at]])
            before += 1
    return found


def checked(data: bytes | bytearray) -> None:
    """Decoding gives what the plain reader reads."""
    expected, at = [], 0
    while at < len(data):
        batch = memoryview(data)[at:]
        header = parse_header(batch)
        batch = batch[: header.size]
        expected += [(each.offset, each.key, each.value) for each in records(batch, header, max_bytes=LIMIT)]
        at += header.size
    found = Decoder("t", 0, RecordFilter(0, 1 << 40), SCHEMA).decode(memoryview(data))
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == expected


@pytest.mark.parametrize("codec", [NONE, LZ4])
@pytest.mark.parametrize("batches", [1, 4, 30])
def test_long_batches_are_entered_where_records_begin(codec: int, batches: int) -> None:
    chunk = chunk_of(
        [build_batch(some_records(1000), base_offset=1000 * number, compression=codec) for number in range(batches)]
    )
    found = lanes.split(chunk)
    assert found is not None
    assert len(found.starts) >= min(8 * batches, 200)
    starts = true_starts(chunk)
    ends = dict(zip(chunk.ends.tolist(), chunk.headers.records.tolist(), strict=True))
    for start, end, count in zip(*(column.tolist() for column in found), strict=True):
        assert starts.get(end, 0) in (0, starts[start] + count)
        assert end not in ends or ends[end] == starts[start] + count
    assert int(found.records.sum()) == 1000 * batches


def test_records_inside_of_values_are_not_taken_for_records() -> None:
    new: list[NewRecord] = [(b"%d" % number, imitation(number, 4), (), 10**12) for number in range(200)]
    data = build_batch(new) + build_batch(new, base_offset=200)
    chunk = chunk_of([data])
    found = lanes.split(chunk)
    assert found is not None
    assert not set(found.starts.tolist()) <= set(true_starts(chunk)), "no guess was wrong: nothing is tested"
    checked(data)


def test_what_stands_between_a_wrong_entry_and_the_next_right_one_is_not_lost() -> None:
    """One value in the middle imitates; its lanes would pass over the records around it."""
    for place in range(440, 560, 7):
        new = some_records(1000)
        new[place] = (b"k", imitation(place, 20), (), 10**12)
        checked(build_batch(new))


def test_batches_with_gaps_stay_whole() -> None:
    new = some_records(1000)
    thin = thinned(build_batch(new), [number % 10 != 3 for number in range(1000)])
    assert lanes.split(chunk_of([thin])) is None
    checked(thin)


@pytest.mark.parametrize("byte", [b"\0", b"\xd0", b"\x02"])
def test_values_of_one_byte_over_and_over(byte: bytes) -> None:
    data = build_batch(some_records(900, byte * 40), compression=LZ4)
    checked(data)


def test_mostly_zeros_are_not_looked_through() -> None:
    assert lanes.split(chunk_of([build_batch(some_records(900, bytes(40)))])) is None


def test_short_batches_stay_whole() -> None:
    assert (
        lanes.split(chunk_of([build_batch(some_records(60), base_offset=60 * number) for number in range(20)])) is None
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alphabet=st.sampled_from([b"\0\1\2\3", b"\x00\x80\x02\x20", bytes(range(256)), b"abc \0"]),
    count=st.integers(100, 1500),
    codec=st.sampled_from([NONE, LZ4]),
)
def test_any_bytes_decode_as_the_plain_reader_reads_them(seed: int, alphabet: bytes, count: int, codec: int) -> None:
    chance = np.random.default_rng(seed)
    letters = np.frombuffer(alphabet, np.uint8)

    def text(longest: int) -> bytes | None:
        size = int(chance.integers(-1, longest))
        return None if size < 0 else letters[chance.integers(0, len(letters), size)].tobytes()

    new: list[NewRecord] = []
    for number in range(count):
        headers = [(b"h", text(6))] if alphabet[0] == number % 7 else []
        new.append((text(9), text(60), headers, 10**12 + int(chance.integers(-200, 200))))
    checked(build_batch(new, compression=codec) + build_batch(new[:90], base_offset=count))


def test_a_batch_that_claims_a_record_less_or_more_is_refused_as_before() -> None:
    """The deltas of the records are right, the header is not: with lanes as without."""
    for claimed in (999, 1001):
        batch = build_batch(some_records(1000))
        struct.pack_into(">i", batch, 57, claimed)
        struct.pack_into(">i", batch, 23, claimed - 1)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
        with pytest.raises(KafkaError) as refused:
            list(Decoder("t", 0, RecordFilter(0, 1 << 40), SCHEMA).decode(memoryview(batch)))
        assert refused.value.code is ErrorCode.INVALID_RECORD
