"""Leaving records out of batches: what stays is byte for byte what it was, and any reader understands the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    build_batch,
    check_crc,
    parse_header,
    records,
    stamp_append_time,
)
from duramen.wire.batch_filter import LATEST_HORIZON, delete_horizon, empty_batch, filtered_batch, spans
from duramen.wire.compression import decompress

NEW = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.integers(0, 2**41),
    ),
    min_size=1,
    max_size=8,
)


def opened(data: bytearray) -> tuple[BatchHeader, bytes]:
    header = parse_header(data)
    return header, decompress(header.compression, memoryview(data)[HEADER_SIZE:], 1 << 20)


def contents(data: bytearray) -> dict[int, tuple[object, ...]]:
    assert check_crc(data, parse_header(data))
    return {
        record.offset: (record.key, record.value, record.headers, record.timestamp)
        for record in records(data, max_bytes=1 << 20)
    }


@given(NEW, st.integers(0, 4), st.data(), st.none() | st.integers(0, 2**42))
def test_records_that_stay_are_what_they_were(new: list, codec: int, data: st.DataObject, horizon: int | None) -> None:
    batch = build_batch(
        new, base_offset=70, leader_epoch=3, compression=codec, producer_id=5, producer_epoch=1, base_sequence=9
    )
    header, payload = opened(batch)
    found = list(spans(payload, header))
    assert [span.key for span in found] == [key for key, _, _, _ in new]
    assert [span.is_tombstone for span in found] == [value is None for _, value, _, _ in new]
    kept = data.draw(st.lists(st.sampled_from(found), min_size=1, unique=True).map(sorted))
    smaller = filtered_batch(header, payload, kept, horizon)
    after = parse_header(smaller)
    for name in ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(after, name) == getattr(header, name)
    assert after.compression == codec
    assert after.count == len(kept)
    assert delete_horizon(after) == horizon
    before = contents(batch)
    assert contents(smaller) == {70 + span.offset_delta: before[70 + span.offset_delta] for span in kept}
    assert after.max_timestamp == max(each[3] for each in contents(smaller).values())


def test_a_horizon_stays_when_more_records_go() -> None:
    batch = build_batch([(b"a", None, [], 1000), (b"b", b"1", [], 1005)], base_offset=4)
    first = filtered_batch(*opened(batch), list(spans(opened(batch)[1], parse_header(batch))), LATEST_HORIZON)
    header, payload = opened(first)
    second = filtered_batch(header, payload, list(spans(payload, header))[:1], None)
    assert delete_horizon(parse_header(second)) == LATEST_HORIZON
    assert contents(second) == {4: (b"a", None, [], 1000)}


def test_timestamps_of_the_append_stay_those_of_the_append() -> None:
    batch = build_batch([(b"a", b"1", [], 1000), (b"b", None, [], 1005)])
    stamp_append_time(batch, 5000)
    header, payload = opened(batch)
    smaller = filtered_batch(header, payload, list(spans(payload, header))[1:], 9000)
    assert contents(smaller) == {1: (b"b", None, [], 5000)}


def test_an_empty_batch_says_which_offsets_and_sequences_it_had() -> None:
    batch = build_batch(
        [(b"a", b"1", [], 1000), (b"b", b"2", [], 2000)],
        base_offset=8, leader_epoch=2, compression=4, producer_id=7, producer_epoch=0, base_sequence=11,
        transactional=True,
    )  # fmt: skip
    empty = empty_batch(parse_header(batch))
    after = parse_header(empty)
    assert len(empty) == HEADER_SIZE
    assert (after.base_offset, after.last_offset, after.base_sequence, after.last_sequence) == (8, 9, 11, 12)
    assert (after.leader_epoch, after.count, after.compression, after.max_timestamp) == (2, 0, 0, 2000)
    assert after.is_transactional
    assert contents(empty) == {}


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_broken_records_are_named(cut: int) -> None:
    batch = build_batch([(b"key", b"value", [], 1000)] * 2)
    header, payload = opened(batch)
    for broken in (payload[:-cut], payload + bytes(cut), b"\xff" * cut + payload):
        with pytest.raises(KafkaError) as raised:
            list(spans(broken, header))
        assert raised.value.code == ErrorCode.INVALID_RECORD
