"""Columns to record batches, read back by our own decoder and by kafka-python's."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.encode.arrow_buffers import varints, zigzag
from duramen.spark.codec.encode.records import Encoded, Rows, encode
from duramen.wire.batch import check_produced, records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
T0 = 1_700_000_000_000


class Row(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp: int


blobs = st.none() | st.binary(max_size=12) | st.integers(60, 70).map(bytes) | st.integers(8000, 9000).map(bytes)
rows_strategy = st.lists(
    st.builds(
        Row,
        st.integers(0, 3),
        blobs,
        blobs,
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
        st.integers(0, 2**42),
    ),
    min_size=1,
    max_size=30,
)


def columns(rows: list[Row], *, keys: bool = True, headers: bool = True) -> Rows:
    listed = [None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers] for row in rows]
    return Rows(
        pa.array([row.key for row in rows], pa.binary()) if keys else None,
        pa.array([row.value for row in rows], pa.binary()),
        pa.array(listed, HEADERS) if headers else None,
        np.array([row.timestamp for row in rows], np.int64),
    )


def partitions(rows: list[Row]) -> np.ndarray:
    return np.array([row.partition for row in rows], np.int32)


def read_back(batches: list[Encoded]) -> dict[int, list[Row]]:
    """What each partition would hold: by our decoder, which must agree with kafka-python's."""
    found: dict[int, list[Row]] = defaultdict(list)
    for batch in batches:
        header = check_produced(memoryview(batch.data), 1 << 24)
        ours = list(records(batch.data, max_bytes=1 << 24))
        assert batch.count == header.count == len(ours)
        assert [record.offset for record in ours] == list(range(len(ours)))
        assert header.max_timestamp == max(record.timestamp for record in ours)
        theirs = DefaultRecordBatch(bytes(batch.data))
        assert theirs.validate_crc()
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
            (r.offset, r.timestamp, r.key, r.value, [(k.decode(), v) for k, v in r.headers]) for r in ours
        ]
        for record in ours:
            headers = tuple((name.decode(), content) for name, content in record.headers)
            found[batch.partition].append(Row(batch.partition, record.key, record.value, headers, record.timestamp))
    return found


def expected(rows: list[Row], *, keys: bool = True, headers: bool = True) -> dict[int, list[Row]]:
    wanted: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        named = (row.headers or ()) if headers else ()
        wanted[row.partition].append(row._replace(key=row.key if keys else None, headers=named))
    return wanted


@settings(deadline=None)
@given(rows_strategy, st.integers(0, 4), st.booleans(), st.booleans(), st.sampled_from([1, 300, 20_000, 1 << 20]))
def test_every_row_comes_back(rows: list[Row], codec: int, keys: bool, headers: bool, batch_bytes: int) -> None:
    made = columns(rows, keys=keys, headers=headers)
    batches = list(encode(made, partitions(rows), compression=codec, batch_bytes=batch_bytes))
    assert read_back(batches) == expected(rows, keys=keys, headers=headers)
    for batch in batches:
        if codec == 0 and batch.count > 1:
            assert len(batch.data) <= batch_bytes + 61


@settings(deadline=None, max_examples=30)
@given(rows_strategy, st.data())
def test_slices_and_wide_types_are_the_same_rows(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    made = columns(rows)
    wide = Rows(
        made.key.cast(pa.large_binary()), made.value.cast(pa.large_binary()), made.headers, made.timestamps
    ).slice(start, end)
    assert wide.sizes().tolist() == made.sizes()[start:end].tolist()
    batches = list(encode(wide, partitions(rows)[start:end], compression=0, batch_bytes=1 << 20))
    assert read_back(batches) == expected(rows[start:end])


def test_headers_with_gaps_between_their_rows() -> None:
    """A null list may have entries behind it in memory, and a list column need not begin at its first entry."""
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "b", "c", "d"]), pa.array([b"1", b"2", None, b"4"], pa.binary())], ["key", "value"]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), entries, mask=pa.array([False, True, False]))
    rows = Rows(None, pa.array([b"x", b"y", b"z"], pa.binary()), lists, np.full(3, T0))
    batches = list(encode(rows, np.zeros(3, np.int32), compression=0, batch_bytes=1 << 20))
    assert [row.headers for row in read_back(batches)[0]] == [(("a", b"1"),), (), (("d", b"4"),)]


def test_a_header_without_a_key_is_refused() -> None:
    lists = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with pytest.raises(KafkaError, match="without a key") as refused:
        list(
            encode(
                Rows(None, pa.array([b"x"]), lists, np.full(1, T0)), np.zeros(1, np.int32), compression=0, batch_bytes=9
            )
        )
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_no_rows_no_batches() -> None:
    rows = Rows(None, pa.array([], pa.binary()), None, np.zeros(0, np.int64))
    assert list(encode(rows, np.zeros(0, np.int32), compression=0, batch_bytes=100)) == []


def test_numbers_of_every_length() -> None:
    numbers = [0, -1, 1, 63, 64, -64, -65, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]
    coded = varints(np.array(numbers, np.int64)).to_pylist()
    for number, got in zip(numbers, coded, strict=True):
        value = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(got))
        assert (value >> 1) ^ -(value & 1) == number
        assert all(byte & 0x80 for byte in got[:-1])
        assert got[-1] < 0x80
    assert zigzag(np.array([0, -1, 1, -2])).tolist() == [0, 1, 2, 3]
