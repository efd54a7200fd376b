"""Record batches against two other implementations, and every reason to refuse one."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.wire import batch
from duramen.wire.batch import NewRecord, build_batch, check_produced, parse_header

with warnings.catch_warnings():  # the package reads its schemas in a deprecated way when imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

BIG = 1 << 24
FIELD = st.one_of(st.none(), st.binary(max_size=80))
HEADERS = st.lists(st.tuples(st.text(max_size=8).map(str.encode), FIELD), max_size=3)
RECORDS = st.lists(st.tuples(FIELD, FIELD, HEADERS, st.integers(0, 2**42)), min_size=1, max_size=12)


def fresh(**more: object) -> bytearray:
    return build_batch([(b"k", b"v", [(b"h", None)], 1000), (None, b"w", [], 1005)], **more)  # type: ignore[arg-type]


def seen(entry: object) -> tuple[object, ...]:
    return entry.offset, entry.timestamp, entry.key, entry.value, [(k.encode(), v) for k, v in entry.headers]  # type: ignore[attr-defined]


def ours(data: bytes | bytearray) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch.records(data, max_bytes=BIG)]


@pytest.mark.parametrize("codec", range(5))
@given(new=RECORDS, base=st.integers(0, 2**40), producer=st.booleans())
def test_other_implementations_read_what_we_build(codec: int, new: list[NewRecord], base: int, producer: bool) -> None:
    ids = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11} if producer else {}
    data = bytes(build_batch(new, base_offset=base, compression=codec, leader_epoch=5, **ids))
    expected = [(base + i, ts, key, value, headers) for i, (key, value, headers, ts) in enumerate(new)]
    assert ours(data) == expected
    for reader in (AioBatch, KafkaPythonBatch)[: 2 if codec < 2 else 1]:  # kafka-python lacks the other codecs here
        theirs = reader(data)
        assert theirs.validate_crc()
        assert [seen(entry) for entry in theirs] == expected
    header = parse_header(data)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (base, base + len(new), 5)
    assert (header.size, header.count, header.compression) == (len(data), len(new), codec)
    assert header.max_timestamp == max(entry[3] for entry in new)
    assert (header.producer_id, header.base_sequence) == ((7, 11) if producer else (-1, -1))


@pytest.mark.parametrize("codec", range(5))
@given(new=RECORDS)
def test_we_read_and_accept_what_others_build(codec: int, new: list[NewRecord]) -> None:
    for builder_type in (AioBuilder, KafkaPythonBuilder)[: 2 if codec < 2 else 1]:
        builder = builder_type(
            magic=2, compression_type=codec, is_transactional=False, producer_id=-1, producer_epoch=-1,
            base_sequence=-1, batch_size=1 << 20,
        )  # fmt: skip
        for delta, (key, value, headers, timestamp) in enumerate(new):
            builder.append(delta, timestamp, key, value, [(name.decode(), content) for name, content in headers])
        data = bytes(builder.build())
        assert ours(data) == [(i, ts, key, value, headers) for i, (key, value, headers, ts) in enumerate(new)]
        assert check_produced(memoryview(data), BIG).count == len(new)


def test_stamping_gives_a_batch_its_place_and_keeps_its_crc() -> None:
    data = fresh()
    batch.stamp(memoryview(data), 77, 4)
    header = parse_header(data)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (77, 4, 78)
    assert batch.check_crc(data, header)
    assert not batch.check_crc(data[:-1], header)


@pytest.mark.parametrize("codec", [0, 4])
def test_append_time_is_every_records_timestamp(codec: int) -> None:
    data = fresh(compression=codec)
    batch.stamp_append_time(memoryview(data), 123_456)
    header = parse_header(data)
    assert (header.timestamp_type, header.max_timestamp) == (1, 123_456)
    assert batch.check_crc(data, header)
    assert [entry[1] for entry in ours(data)] == [123_456, 123_456]
    assert [r.timestamp for r in AioBatch(bytes(data))] == [123_456, 123_456]


def test_batches_walks_whole_ones_and_leaves_out_the_rest() -> None:
    first, second = fresh(), fresh(base_offset=2)
    joined = first + second
    assert [(p, h.base_offset) for p, h in batch.batches(joined)] == [(0, 0), (len(first), 2)]
    assert [p for p, _ in batch.batches(joined[:-1])] == [0]
    assert [p for p, _ in batch.batches(joined[: len(first) + 30])] == [0]
    assert list(batch.batches(b"")) == []


@pytest.mark.parametrize(
    ("base", "delta", "last"), [(0, 0, 0), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 4, 2), (-1, 3, -1)]
)
def test_sequences_wrap(base: int, delta: int, last: int) -> None:
    header = parse_header(fresh())
    header.base_sequence, header.last_offset_delta = base, delta
    assert header.last_sequence == last


def rewritten(layout: str, position: int, value: int, **more: object) -> bytes:
    """A good batch with one field replaced and the CRC made right again."""
    data = fresh(**more)
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">I", data, 17, batch.crc32c(memoryview(data)[21:]))
    return bytes(data)


IDS = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: b"", ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh())[:1], ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh())[:60], ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh())[:-1], ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh() + fresh()), ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh()) + b"\0", ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">b", 16, 1), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">b", 16, 1)[:40], ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">i", 8, 48), ErrorCode.CORRUPT_MESSAGE),
        (lambda: rewritten(">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
        (lambda: rewritten(">i", 8, 2**31 - 1), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">q", 0, -5), ErrorCode.CORRUPT_MESSAGE),
        (lambda: rewritten(">q", 0, 5), ErrorCode.INVALID_RECORD),
        (lambda: bytes(fresh()[:17] + b"\0\0\0\0" + fresh()[21:]), ErrorCode.CORRUPT_MESSAGE),
        (lambda: rewritten(">i", 57, 0), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">i", 57, 3), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">i", 57, -2), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">i", 23, -1), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">h", 21, 0x20), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">h", 21, 0x40), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">h", 21, -0x8000), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda: rewritten(">h", 21, 0x08), ErrorCode.INVALID_TIMESTAMP),
        (lambda: rewritten(">h", 21, 0x10), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">i", 53, -1, **IDS), ErrorCode.INVALID_RECORD),
        (lambda: rewritten(">h", 51, -1, **IDS), ErrorCode.INVALID_RECORD),
    ],
)
def test_what_a_client_must_not_produce(make: Callable[[], bytes], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        check_produced(memoryview(make()), BIG)
    assert caught.value.code is code, caught.value


def of_many(count: int, **more: object) -> memoryview:
    """A batch of two records that says it has so many."""
    data = fresh(**more)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, batch.crc32c(memoryview(data)[21:]))
    return memoryview(data)


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ((len(fresh()) - 61) // 7, {}),
        ((64 << 20) // 7, {"compression": 4}),
        ((64 << 20) // 7, {"compression": 1, **IDS}),
    ],
)
def test_a_batch_says_no_more_records_than_there_is_room_for(most: int, more: dict[str, object]) -> None:
    """Each takes an offset: a few bytes took two billion, and so a segment of their own."""
    assert check_produced(of_many(most, **more), 1 << 20).count == most
    for count in (most + 1, 2**31 - 1):
        with pytest.raises(KafkaError) as caught:
            check_produced(of_many(count, **more), 1 << 20)
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_the_size_limit_counts_the_whole_batch() -> None:
    data = memoryview(fresh())
    assert check_produced(data, len(data)).size == len(data)
    with pytest.raises(KafkaError) as caught:
        check_produced(data, len(data) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@given(st.binary(max_size=400))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(KafkaError):
        check_produced(memoryview(data), BIG)


@given(body=st.binary(max_size=60), count=st.integers(1, 2**31 - 1), codec=st.integers(0, 4))
def test_rubbish_records_behind_a_good_crc_are_refused(body: bytes, count: int, codec: int) -> None:
    data = fresh()[:61] + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">ii", data, 53, -1, count)
    struct.pack_into(">h", data, 21, codec)
    with pytest.raises(KafkaError):
        list(batch.records(data, max_bytes=BIG))


def test_a_bomb_in_a_batch_stops_at_the_limit() -> None:
    data = build_batch([(None, bytes(1_000_000), [], 0)], compression=4)
    with pytest.raises(KafkaError) as caught:
        list(batch.records(data, max_bytes=999_999))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_markers_say_how_a_transaction_ended() -> None:
    for kind in (batch.ABORT, batch.COMMIT):
        data = batch.build_marker(9, 2, kind, 6, 1234, base_offset=40)
        header = parse_header(data)
        assert header.is_control
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
        assert batch.read_marker(data, header) == (kind, 6)
        assert AioBatch(bytes(data)).is_control_batch


def test_other_control_records_are_no_markers() -> None:
    data = build_batch([(struct.pack(">hh", 0, 2), b"leader change", (), 0)], control=True)
    assert batch.read_marker(data, parse_header(data)) is None
    short = build_batch([(b"\0", b"", (), 0)], control=True)
    with pytest.raises(KafkaError):
        batch.read_marker(short, parse_header(short))


def test_an_empty_batch_is_never_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])
