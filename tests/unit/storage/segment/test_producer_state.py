"""Idempotence and open transactions: what a log remembers of its producers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.storage.segment.producer_snapshot import SnapshotHome, decode_kafka, decode_ours, encode_kafka, encode_ours
from duramen.storage.segment.producer_state import ProducerStates
from duramen.wire.batch import ABORT, COMMIT, BatchHeader, Marker, build_batch, build_marker, parse_header
from duramen.wire.checksum import crc32c

LAST = 2**31 - 1
HOME = SnapshotHome(bytes(16), 3, 9)


def batch(
    sequence: int,
    count: int = 1,
    *,
    base: int = 0,
    epoch: int = 0,
    id: int = 7,
    transactional: bool = False,
    time: int = 5,
) -> BatchHeader:
    return parse_header(
        build_batch(
            [(None, b"", [], time)] * count,
            base_offset=base,
            producer_id=id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def marker(kind: int, base: int, *, epoch: int = 0, id: int = 7) -> tuple[BatchHeader, Marker]:
    return parse_header(build_marker(id, epoch, kind, 1, 9, base_offset=base)), Marker(kind, 1)


def refused(states: ProducerStates, header: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check(header)
    return caught.value.code


def test_the_last_five_batches_are_recognised_with_their_first_home() -> None:
    states = ProducerStates()
    for number in range(6):
        header = batch(number * 2, 2, base=100 + number * 2, time=number)
        assert states.check(header) is None
        states.update(header)
    for number in range(1, 6):
        duplicate = states.check(batch(number * 2, 2))
        assert duplicate == (100 + number * 2, number, 101 + number * 2)
    assert refused(states, batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused_and_a_partial_repeat_too() -> None:
    states = ProducerStates()
    states.update(batch(0, 3))
    assert refused(states, batch(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, batch(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(3)) is None


def test_sequences_go_on_at_zero_behind_the_greatest() -> None:
    states = ProducerStates()
    states.update(batch(LAST - 1, 2))
    assert states.check(batch(0)) is None
    states = ProducerStates()
    states.update(batch(LAST - 1, 4))
    assert states.check(batch(2)) is None
    assert states.check(batch(LAST - 1, 4)) is not None
    assert refused(states, batch(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere() -> None:
    states = ProducerStates()
    assert states.check(batch(12345)) is None
    states.update(batch(12345))
    assert states.check(batch(12346)) is None


def test_epochs_fence() -> None:
    states = ProducerStates()
    states.update(batch(0, epoch=3))
    assert refused(states, batch(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(states, batch(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(0, epoch=4)) is None
    states.update(batch(0, epoch=4, base=9))
    assert states.check(batch(0, epoch=4)) == (9, 5, 9)
    assert refused(states, batch(1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_expire_unless_a_transaction_is_open() -> None:
    states = ProducerStates()
    states.update(batch(5, id=1, time=1000))
    states.update(batch(5, id=2, time=1000, base=1, transactional=True))
    assert states.expire(1000, 100) == 0
    states.update(batch(5, id=3, time=1050, base=2))
    assert states.expire(1050, 100) == 0
    assert states.expire(1099, 100) == 0
    assert states.expire(1100, 100) == 1
    assert [producer.id for producer in states.active()] == [2, 3]
    assert states.check(batch(77, id=1)) is None


@pytest.mark.parametrize("time", [-1, 5, 10**15], ids=["none", "old", "future"])
def test_what_the_records_say_of_time_does_not_make_a_producer_expire(time: int) -> None:
    """Old data is written by producers that are at work now: forgotten, their retries would be stored twice."""
    states = ProducerStates()
    states.update(batch(0, base=40, time=time))
    assert states.expire(5000, 100) == 0
    assert states.check(batch(0)) == (40, time, 40)
    states.update(batch(1, base=41, time=time))
    assert states.expire(5090, 100) == 0
    assert states.expire(5189, 100) == 0
    assert states.check(batch(1)) == (41, time, 41)
    assert states.expire(5190, 100) == 1


def test_a_restored_producer_goes_by_its_last_record_but_not_before_its_retry_can_have_come() -> None:
    """A crash between its batch and the answer: the retry comes after the start, and perhaps after housekeeping."""
    start, hour, day = 10**12, 3_600_000, 86_400_000
    stored = ProducerStates()
    stored.update(batch(0, id=1, time=5))
    stored.update(batch(0, id=2, time=start - day // 2, base=1))
    stored.update(batch(0, id=3, time=2 * start, base=2))
    stored.update(batch(0, id=4, time=5, base=3))
    states = ProducerStates()
    for producer in decode_ours(encode_ours(stored, HOME)) or ():
        states.restore(producer)
    assert states.expire(start, day) == 0
    states.update(batch(1, id=4, time=5, base=4))
    assert states.expire(start + hour - 1, day) == 0
    assert states.check(batch(0, id=1)) is not None
    assert states.expire(start + hour, day) == 1
    assert states.expire(start + day // 2, day) == 1
    assert [producer.id for producer in states.active()] == [3, 4]
    assert states.expire(start + day, day) == 1
    assert states.expire(start + day + hour, day) == 1


def test_open_transactions_hold_the_stable_offset_until_their_marker_is_committed() -> None:
    states = ProducerStates()
    assert states.first_unstable_offset is None
    states.update(batch(0, 2, id=1, base=10, transactional=True))
    states.update(batch(0, 2, id=2, base=12, transactional=True))
    states.update(batch(2, 2, id=1, base=14, transactional=True))
    assert states.first_unstable_offset == 10
    assert states.end_transaction(*marker(ABORT, 16, id=1)) == (1, 10, 16, 12)
    assert states.first_unstable_offset == 10
    states.committed(16)
    assert states.first_unstable_offset == 10
    states.committed(17)
    assert states.first_unstable_offset == 12
    assert states.end_transaction(*marker(COMMIT, 17, id=2)) is None
    states.committed(18)
    assert states.first_unstable_offset is None
    assert states.end_transaction(*marker(ABORT, 18, id=2)) is None


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    states = ProducerStates()
    states.update(batch(0, transactional=True))
    assert refused(states, batch(1)) is ErrorCode.INVALID_TXN_STATE
    assert states.check(batch(1, transactional=True)) is None


def test_markers_of_old_epochs_are_refused() -> None:
    states = ProducerStates()
    states.update(batch(0, epoch=3))
    with pytest.raises(KafkaError) as caught:
        states.check_marker(*marker(COMMIT, 1, epoch=2))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    states.end_transaction(marker(COMMIT, 1, epoch=3)[0], Marker(COMMIT, 8))
    with pytest.raises(KafkaError) as caught:
        states.check_marker(*marker(COMMIT, 2, epoch=3))
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    states.check_marker(marker(COMMIT, 2, epoch=3)[0], Marker(COMMIT, 8))


def test_a_marker_with_a_new_epoch_starts_sequences_over() -> None:
    states = ProducerStates()
    states.update(batch(0, 5, epoch=3))
    states.end_transaction(*marker(ABORT, 5, epoch=4))
    assert states.check(batch(0, epoch=4)) is None
    assert refused(states, batch(5, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def seen(states: ProducerStates) -> list[tuple[object, ...]]:
    return [(p.id, p.epoch, p.batches, p.coordinator_epoch, p.transaction_start) for p in states.active()]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), max_size=30))
def test_state_survives_its_files(steps: list[tuple[int, int, bool]]) -> None:
    states = ProducerStates()
    offset = 0
    for id, count, transactional in steps:
        known = states.get(id)
        sequence = known.last_sequence + 1 if known else 0
        states.update(batch(sequence, count, base=offset, id=id, transactional=transactional))
        offset += count
    ours = encode_ours(states, HOME)
    restored = ProducerStates()
    for producer in decode_ours(ours) or []:
        restored.restore(producer)
    assert seen(restored) == seen(states)
    assert restored.first_unstable_offset == states.first_unstable_offset
    kafkas = decode_kafka(encode_kafka(states))
    assert kafkas is not None
    assert [(p.id, p.batches) for p in kafkas] == [(p.id, p.batches[-1:]) for p in states.active()]
    for data, decode in ((ours, decode_ours), (encode_kafka(states), decode_kafka)):
        assert decode(data[:-1]) is None
        assert decode(b"") is None
        for at in (0, len(data) // 2, len(data) - 1):
            damaged = bytearray(data)
            damaged[at] ^= 1
            assert decode(bytes(damaged)) is None


def test_files_of_before_that_do_not_say_whose_they_are_are_read() -> None:
    states = ProducerStates()
    states.update(batch(0))
    body = b"DPR2" + encode_ours(states, HOME)[4:-32]
    found = decode_ours(body + crc32c(body).to_bytes(4, "big"), HOME)
    assert [producer.id for producer in found or []] == [7]


def test_kafkas_snapshot_layout_by_hand() -> None:
    states = ProducerStates()
    states.update(batch(10, 3, base=100, epoch=2, id=9, time=1234))
    data = encode_kafka(states)
    assert data[:2] == b"\0\1"
    assert data[6:] == bytes.fromhex(
        "00000001000000000000000900020000000c00000000000000660000000200000000000004d2ffffffff"
        "ffffffffffffffff"
    )  # fmt: skip
