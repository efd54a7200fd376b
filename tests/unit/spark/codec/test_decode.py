"""Columns made by numpy against the plain reader of records, over everything that a partition may hold."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.worlds.batch_strategies import LIMIT, Partition, expected, partitions

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode import Decoder, RecordFilter
from duramen.wire.batch import (
    CRC_START,
    HEADER_SIZE,
    build_batch,
    parse_header,
    records,
    replace_payload,
    stamp_append_time,
)
from duramen.wire.checksum import crc32c

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
FIELDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}
SCHEMA = pa.schema(list(FIELDS.items()))
EVERYTHING = RecordFilter(0, 2**62)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode(
    data: bytes | bytearray,
    wanted: RecordFilter = EVERYTHING,
    aborted: Sequence[tuple[int, int]] | None = None,
    schema: pa.Schema = SCHEMA,
) -> list[dict[str, Any]]:
    """All rows, after Arrow has looked at every buffer."""
    rows = []
    for batch in Decoder("flüge", 7, wanted, schema, LIMIT).decode(memoryview(data), aborted):
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        rows += batch.to_pylist()
    return rows


def as_rows(made: Partition, committed: bool) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "flüge",
            "partition": 7,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": kind,
            "headers": [{"key": name.decode(), "value": value} for name, value in record.headers] or None,
        }
        for record, kind in expected(made, committed)
    ]


@settings(max_examples=50, deadline=None)
@given(made=partitions())
def test_columns_hold_what_the_plain_reader_finds(made: Partition) -> None:
    assert decode(made.data) == as_rows(made, committed=False)


@settings(max_examples=50, deadline=None)
@given(made=partitions(with_headers=False))
def test_a_reader_of_committed_records_sees_no_aborted_one(made: Partition) -> None:
    assert decode(made.data, aborted=made.aborted) == as_rows(made, committed=True)


@settings(max_examples=25, deadline=None)
@given(made=partitions(), low=st.integers(-3, 60), width=st.integers(0, 60))
def test_offsets_outside_of_the_range_are_dropped(made: Partition, low: int, width: int) -> None:
    everything = as_rows(made, committed=False)
    first = everything[0]["offset"] if everything else 0
    start, end = max(0, first + low), max(0, first + low) + width
    assert decode(made.data, RecordFilter(start, end)) == [row for row in everything if start <= row["offset"] < end]


@settings(max_examples=25, deadline=None)
@given(made=partitions(), data=st.data())
def test_one_key_and_a_range_of_time(made: Partition, data: st.DataObject) -> None:
    everything = as_rows(made, committed=False)
    keys = [row["key"] for row in everything if row["key"] is not None] or [b"none"]
    key = data.draw(st.sampled_from(keys))
    assert decode(made.data, RecordFilter(0, 2**62, key=key)) == [row for row in everything if row["key"] == key]
    moments = sorted((row["timestamp"] - EPOCH) // timedelta(milliseconds=1) for row in everything) or [0]
    since, until = sorted(data.draw(st.tuples(st.sampled_from(moments), st.sampled_from(moments))))
    assert decode(made.data, RecordFilter(0, 2**62, timestamps=(since, until))) == [
        row
        for row in everything
        if EPOCH + timedelta(milliseconds=since) <= row["timestamp"] < EPOCH + timedelta(milliseconds=until)
    ]


def test_a_batch_that_the_broker_timed_is_not_opened_outside_of_the_range() -> None:
    batch = build_batch([(b"k", b"v", (), 9)] * 2, base_offset=5)
    stamp_append_time(memoryview(batch), 50)
    unreadable = replace_payload(batch, 0, b"no records")
    for since, until in ((0, 50), (51, 90)):
        assert decode(unreadable, RecordFilter(0, 2**62, timestamps=(since, until))) == []
    with pytest.raises(KafkaError):
        decode(unreadable, RecordFilter(0, 2**62, timestamps=(50, 51)))


@settings(max_examples=30, deadline=None)
@given(made=partitions(), names=st.lists(st.sampled_from(list(FIELDS)), min_size=1, unique=True))
def test_only_the_asked_columns_are_made(made: Partition, names: list[str]) -> None:
    schema = pa.schema([(name, FIELDS[name]) for name in names])
    assert decode(made.data, schema=schema) == [
        {name: row[name] for name in names} for row in as_rows(made, committed=False)
    ]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
@example(data=None)
def test_rubbish_under_a_valid_crc_is_refused_when_the_plain_reader_refuses_it(data: st.DataObject | None) -> None:
    """The same verdict, whatever bytes stand where records should."""
    batch = build_batch([(b"k", b"value", [(b"h", b"x")], 9)] * 3, base_offset=5)
    payload = bytearray(batch[HEADER_SIZE:])
    if data is None:
        payload = payload[:-1]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
        payload = payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload
    broken = replace_payload(batch, 0, bytes(payload))
    try:
        found = list(records(broken, max_bytes=LIMIT))
    except KafkaError:
        with pytest.raises(KafkaError) as caught:
            decode(broken)
        assert caught.value.code is ErrorCode.INVALID_RECORD
    else:
        assert [(row["offset"], row["key"], row["value"]) for row in decode(broken)] == [
            (record.offset, record.key, record.value) for record in found
        ]


@pytest.mark.parametrize("at", [CRC_START, HEADER_SIZE, HEADER_SIZE + 20])
def test_a_flipped_bit_is_found_by_the_crc(at: int) -> None:
    batch = build_batch([(b"k", b"v" * 30, (), 9)], base_offset=41)
    batch[at] ^= 1
    with pytest.raises(KafkaError, match="CRC of the batch at offset 41") as caught:
        decode(batch)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_count_that_cannot_be_is_refused_before_anything_is_allocated_for_it(count: int) -> None:
    batch = build_batch([(b"k", b"v", (), 9)])
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, max(count - 1, 0))
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    with pytest.raises(KafkaError):
        decode(batch)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_inflates_beyond_the_limit_is_refused_by_name(codec: int) -> None:
    bomb = build_batch([(None, bytes(LIMIT), (), 9)], compression=codec, base_offset=3)
    with pytest.raises(KafkaError, match="batch at offset 3") as caught:
        decode(bomb)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [0, 3])
def test_many_and_long_batches_go_through_every_way_of_walking(codec: int) -> None:
    """Lock-step over many, one by one over few; runs that are read in place, and cuts between chunks."""
    data, offset, values = bytearray(), 0, []
    for size in [1, 2, 700] * 30 + [30_000]:
        new = [(None if i % 3 else b"%d" % i, b"%d" % (i * i) * 20, (), 10**12 + i) for i in range(size)]
        data += build_batch(new, base_offset=offset, compression=codec)
        values += [entry[1] for entry in new]
        offset += size
    data += build_batch([(None, b"x" * (3 << 20), (), 1)] * 2, base_offset=offset, compression=codec)
    rows = decode(data)
    assert [row["offset"] for row in rows] == list(range(offset + 2))
    assert [row["value"] for row in rows[:-2]] == values
    assert {len(row["value"]) for row in rows[-2:]} == {3 << 20}


def test_records_with_very_many_headers() -> None:
    """Forty records in lock-step, then one alone whose headers go on for longer."""
    new = [
        (None, b"v", [(b"h%d" % i, b"x" * (i % 5) if i % 7 else None) for i in range(n)], 5) for n in [*range(40), 400]
    ]
    batch = build_batch(new)
    assert [row["headers"] for row in decode(batch)] == [
        [{"key": name.decode(), "value": value} for name, value in entry[2]] or None for entry in new
    ]


def test_a_header_key_that_is_no_text_is_read_with_replacements() -> None:
    assert decode(build_batch([(None, None, [(b"\xff\x41", b"")], 0)]))[0]["headers"] == [{"key": "�A", "value": b""}]


def test_a_timestamp_beyond_microseconds_of_64_bits_is_null() -> None:
    rows = decode(build_batch([(None, b"1", (), 2**62), (None, b"2", (), 5)]))
    assert [row["timestamp"] for row in rows] == [None, EPOCH + timedelta(milliseconds=5)]


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    first, second = build_batch([(b"a", b"1", (), 0)]), build_batch([(b"b", b"2", (), 0)], base_offset=1)
    decoder = Decoder("t", 0, EVERYTHING, SCHEMA, LIMIT)
    rows = [row for batch in decoder.decode(memoryview(first + second[:-1])) for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == [b"a"]
    assert decoder.next_offset == 1


def test_a_batch_that_compaction_emptied_moves_the_reader_on() -> None:
    decoder = Decoder("t", 0, EVERYTHING, SCHEMA, LIMIT)
    batch = build_batch([(b"a", b"1", (), 0)] * 5, base_offset=10)
    struct.pack_into(">i", batch, 57, 0)
    empty = replace_payload(batch, 0, b"")
    assert parse_header(empty).count == 0
    assert list(decoder.decode(memoryview(empty))) == []
    assert decoder.next_offset == 15
