"""What a reader of a stream is shown of fetched batches, and where it stands behind them."""

from __future__ import annotations

from duramen.client.protocol.fetch import FetchedBytes
from duramen.dlsn import Dlsn
from duramen.gateway.streams.stream_page import StreamPage, read_page
from duramen.gateway.streams.stream_position import START
from duramen.model import TopicPartition
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker
from duramen.wire.records.control import ControlType, StreamClosedRecord, build_own

EPOCH = 3


def batch(offset: int, *values: bytes, producer: int = -1) -> bytes:
    return bytes(
        build_batch(
            [(None, value, (), 1) for value in values],
            base_offset=offset,
            leader_epoch=EPOCH,
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else 0,
            base_sequence=-1 if producer < 0 else 0,
            transactional=producer >= 0,
        )
    )


def marker(offset: int, producer: int, kind: int) -> bytes:
    made = bytearray(build_marker(producer, 0, kind, 0, 1))
    made[0:8] = offset.to_bytes(8, "big")
    made[12:16] = EPOCH.to_bytes(4, "big")
    return bytes(made)


def closing(offset: int) -> bytes:
    made = bytearray(build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), 1))
    made[0:8] = offset.to_bytes(8, "big")
    return bytes(made)


def page(asked: Dlsn, data: bytes, end: int, stable: int, aborted: list[tuple[int, int]] | None = None) -> StreamPage:
    fetched = FetchedBytes(
        TopicPartition("a", 0), asked.offset, memoryview(data), end, stable, stable, 0, aborted or []
    )
    return read_page(fetched, asked)


def test_records_and_the_position_behind_them() -> None:
    found = page(START, batch(0, b"a", b"b") + batch(2, b"c"), 3, 3)
    assert found.messages == [b"a", b"b", b"c"]
    assert found[2:5] == (Dlsn(EPOCH + 1, 2, 1), True, False)
    assert found.places == [(EPOCH, 0), (EPOCH, 0), (EPOCH, 2)]
    assert found.after(Dlsn(EPOCH + 1, 0, 1)).messages == [b"b", b"c"]
    assert page(START, batch(0, b"a"), 1, 9).up_to_date is False


def test_a_position_inside_a_batch() -> None:
    assert page(Dlsn(EPOCH + 1, 0, 1), batch(0, b"a", b"b"), 2, 2).messages == [b"b"]


def test_nothing_new() -> None:
    asked = Dlsn(EPOCH + 1, 4, 2)
    assert page(asked, b"", 6, 6)[:5] == ([], [], asked, True, False)


def test_aborted_transactions_and_markers_are_passed_over() -> None:
    data = batch(0, b"no", producer=7) + batch(1, b"yes", producer=8) + marker(2, 7, ABORT) + marker(3, 8, COMMIT)
    found = page(START, data + batch(4, b"later", producer=7), 5, 5, [(7, 0)])
    assert found.messages == [b"yes", b"later"]
    only_markers = page(Dlsn(EPOCH + 1, 1, 1), marker(2, 7, ABORT) + marker(3, 8, COMMIT), 4, 4)
    assert only_markers[:5] == ([], [], Dlsn(EPOCH + 1, 3, 1), True, False)


def test_the_end_of_a_closed_stream_is_in_front_of_the_close() -> None:
    behind_b = Dlsn(EPOCH + 1, 0, 2)
    closed = page(START, batch(0, b"a", b"b") + closing(2), 3, 3)
    assert (closed.messages, *closed[2:5]) == ([b"a", b"b"], behind_b, True, True)
    assert page(behind_b, closing(2), 3, 3)[:5] == ([], [], behind_b, True, True)
