"""What one read of a consumer is answered with."""

from __future__ import annotations

import pytest

from duramen.client.protocol.fetch import FetchedBytes
from duramen.gateway.confluent.v2_media_types import Embedded
from duramen.gateway.consumers.consumer_bodies import ConsumedRecord
from duramen.gateway.consumers.record_portion import RECORDS_MAX, RecordPortion, portion_of
from duramen.model import TopicPartition
from duramen.wire.batch import ABORT, build_batch, build_marker

A, B = (TopicPartition("t", number) for number in range(2))


def batch(base: int, *values: bytes | None, key: bytes | None = None, producer: int = -1) -> bytes:
    is_own = producer < 0
    return bytes(
        build_batch(
            [(key, value, (), 0) for value in values],
            base_offset=base,
            producer_id=producer,
            producer_epoch=-1 if is_own else 0,
            base_sequence=-1 if is_own else 0,
            transactional=not is_own,
        )
    )


def fetched(tp: TopicPartition, offset: int, *batches: bytes, end: int, aborted: int = -1) -> FetchedBytes:
    listed = [(7, aborted)] if aborted >= 0 else []
    return FetchedBytes(tp, offset, memoryview(b"".join(batches)), end, end, end, 0, listed)


def read(*answers: FetchedBytes, embedded: Embedded = "binary", max_bytes: int = 1 << 20) -> RecordPortion:
    return portion_of({each.tp: each for each in answers}, embedded, max_bytes)


def shown(record: ConsumedRecord) -> tuple[bytes, bytes, int, int]:
    return bytes(record.key), bytes(record.value), record.partition, record.offset


def test_records_as_base64_and_as_json() -> None:
    found = read(fetched(A, 5, batch(4, b"old", b"\xff", None, key=b"k"), end=7))
    assert [shown(each) for each in found.records] == [(b'"aw=="', b'"/w=="', 0, 5), (b'"aw=="', b"null", 0, 6)]
    assert (found.size, found.moved, found.unfit) == (3, {A: 7}, None)
    text = read(fetched(A, 4, batch(4, b' {"n": 1.10}\n', b"null"), end=6), embedded="json")
    assert [shown(each)[:2] for each in text.records] == [(b"null", b'{"n": 1.10}'), (b"null", b"null")]


def test_so_many_bytes_and_one_record_at_least() -> None:
    both = fetched(A, 0, batch(0, b"12345", b"12345"), end=2), fetched(B, 0, batch(0, b"1"), end=1)
    assert read(*both, max_bytes=0).moved == {A: 1}
    assert read(*both, max_bytes=10).moved == {A: 2}
    assert read(*both, max_bytes=11).moved == {A: 2, B: 1}
    empty = fetched(A, 0, batch(0, *[b""] * (RECORDS_MAX + 1)), end=RECORDS_MAX + 1)
    assert read(empty, max_bytes=0).moved == {A: RECORDS_MAX}


def test_markers_and_aborted_records_are_passed_over() -> None:
    end = bytearray(build_marker(7, 0, ABORT, 0, 0, base_offset=3))
    found = read(fetched(A, 0, batch(0, b"no", b"no", producer=7), batch(2, b"yes"), bytes(end), end=4, aborted=0))
    assert [shown(each)[1:] for each in found.records] == [(b'"eWVz"', 0, 2)]
    assert found.moved == {A: 4}
    assert read(fetched(A, 3, bytes(end), end=4, aborted=0)).moved == {A: 4}
    assert read(fetched(A, 4, end=4)).moved == {}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"customer-7", "it is no JSON at byte 0: this character cannot stand here"),
        (b"", "it has to be JSON; it is empty"),
        (b"\xff", "it is not UTF-8 at byte 0"),
        (b"01", "it is no JSON at byte 1: a number is not written so"),
        (b"1 2", "it is no JSON at byte 3: something follows after its end"),
        (b"[" * 100_000, "it nests too deeply"),
    ],
    ids=["no JSON", "empty", "no UTF-8", "number", "more", "deep"],
)
def test_in_front_of_what_is_no_json_a_partition_ends(value: bytes, why: str) -> None:
    good, bad = fetched(B, 0, batch(0, b"1"), end=1), fetched(A, 0, batch(0, b"1", value, b"2"), end=3)
    first = read(bad, good, embedded="json")
    assert (first.moved, first.unfit) == ({A: 1, B: 1}, None)
    behind = fetched(A, 1, batch(0, b"1", value, b"2"), end=3)
    assert read(good, behind, embedded="json").moved == {B: 1}
    alone = read(behind, good, embedded="json")
    assert (alone.records, alone.moved) == ([], {})
    assert alone.unfit is not None
    assert alone.unfit == (A, 1, why)
    assert [each.offset for each in read(behind).records] == [1, 2]


def test_a_key_is_json_too() -> None:
    assert read(fetched(A, 0, batch(0, b"1", key=b"k"), end=1), embedded="json").unfit is not None
