"""Idempotence and open transactions: what a log remembers of its producers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.storage.segment.producer_snapshot import SnapshotHome, decode_kafka, decode_ours, encode_kafka, encode_ours
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.transaction_guards import MOST_GUARDS, TransactionGuard
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
    states.restore(decode_ours(encode_ours(stored, HOME)) or ())
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
    assert states.rolled_back(*marker(COMMIT, 16, id=1)) is None
    assert states.rolled_back(*marker(ABORT, 16, id=1)) == (1, 10, 16, 12)
    states.end_transaction(*marker(ABORT, 16, id=1))
    assert states.first_unstable_offset == 10
    states.committed(16)
    assert states.first_unstable_offset == 10
    states.committed(17)
    assert states.first_unstable_offset == 12
    assert states.rolled_back(*marker(ABORT, 17, id=2)) == (2, 12, 17, 18), "and no other is open"
    states.end_transaction(*marker(COMMIT, 17, id=2))
    states.committed(18)
    assert states.first_unstable_offset is None
    assert states.rolled_back(*marker(ABORT, 18, id=2)) is None


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    states = ProducerStates()
    states.update(batch(0, transactional=True))
    assert refused(states, batch(1)) is ErrorCode.INVALID_TXN_STATE
    assert states.check(batch(1, transactional=True)) is None


def refused_marker(states: ProducerStates, kind: int, *, epoch: int, coordinator: int, version: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check_marker(marker(kind, 1, epoch=epoch)[0], Marker(kind, coordinator), version)
    return caught.value.code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_markers_of_old_epochs_are_refused(version: int) -> None:
    states = ProducerStates()
    states.update(batch(0, epoch=3, transactional=True))
    old = refused_marker(states, COMMIT, epoch=2, coordinator=1, version=version)
    assert old is ErrorCode.INVALID_PRODUCER_EPOCH
    states.end_transaction(marker(COMMIT, 1, epoch=4)[0], Marker(COMMIT, 8))
    old = refused_marker(states, COMMIT, epoch=4, coordinator=7, version=version)
    assert old is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert not states.check_marker(marker(COMMIT, 2, epoch=5)[0], Marker(COMMIT, 8), version)


def test_a_marker_of_the_first_generation_has_the_epoch_of_its_records_and_is_written_again() -> None:
    states = ProducerStates()
    states.update(batch(0, epoch=3, transactional=True))
    same = marker(ABORT, 1, epoch=3)
    assert not states.check_marker(*same, 0)
    states.end_transaction(*same)
    assert not states.check_marker(*same, 1)


def test_a_marker_of_the_second_generation_ends_no_transaction_of_its_own_epoch() -> None:
    """Its epoch was raised for it: with the epoch of an open transaction it is of the one before, and late."""
    states = ProducerStates()
    states.update(batch(0, epoch=3, transactional=True))
    late = refused_marker(states, COMMIT, epoch=3, coordinator=1, version=2)
    assert late is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_repeated_marker_of_the_second_generation_is_there_already() -> None:
    """KAFKA-19999: a coordinator that loads a prepared transaction sends its markers again, and must get on."""
    states = ProducerStates()
    states.update(batch(0, epoch=3, transactional=True))
    first = marker(COMMIT, 1, epoch=4)
    assert not states.check_marker(*first, 2)
    states.end_transaction(*first)
    assert states.check_marker(*first, 2)
    newer = (first[0], Marker(COMMIT, first[1].coordinator_epoch + 1))
    assert not states.check_marker(*newer, 2), "what fences the older coordinator is written"


def test_the_greatest_epoch_may_end_its_own_transaction() -> None:
    states = ProducerStates()
    states.update(batch(0, epoch=32767, transactional=True))
    assert not states.check_marker(*marker(ABORT, 1, epoch=32767), 2)


# ---- the first batch of a transaction ----------------------------------------------------------------------------


def transactional_code(states: ProducerStates, header: BatchHeader, guard: TransactionGuard | None) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check_transactional(header, guard)
    return caught.value.code


def test_a_transaction_begins_under_a_guard_and_goes_on_without() -> None:
    states = ProducerStates()
    first, second = batch(0, transactional=True), batch(1, base=1, transactional=True)
    assert transactional_code(states, first, None) is ErrorCode.INVALID_TXN_STATE
    guard = states.guard(7, 0, 0, False)
    assert states.guard(7, 0, 1, False) is guard
    assert states.check_transactional(first, guard) is None
    states.update(first)
    assert states.has_transaction(7, 0)
    assert states.check_transactional(second, None) is None
    assert states.check_transactional(second, guard) is None
    assert states.check_transactional(batch(0, transactional=True), None) == (0, 5, 0)
    states.update(second)
    states.end_transaction(*marker(COMMIT, 2))
    assert states.check_transactional(batch(1, transactional=True), None) == (1, 5, 1), "its answer was lost"
    third = batch(2, base=3, transactional=True)
    assert transactional_code(states, third, None) is ErrorCode.INVALID_TXN_STATE
    assert transactional_code(states, third, guard) is ErrorCode.INVALID_TXN_STATE, "it was the first one's"


@pytest.mark.parametrize("is_second", [False, True])
def test_a_marker_cancels_the_guard_but_not_that_of_the_next_transaction(is_second: bool) -> None:
    states = ProducerStates()
    guard = states.guard(7, 4, 0, is_second)
    states.end_transaction(*marker(ABORT, 0, epoch=4))
    header = batch(0, base=1, epoch=4, transactional=True)
    if is_second:
        assert states.check_transactional(header, guard) is None
        states.end_transaction(*marker(ABORT, 1, epoch=5))
        assert transactional_code(states, header, guard) is ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        assert transactional_code(states, header, guard) is ErrorCode.INVALID_TXN_STATE


def test_what_a_marker_overtook_is_not_part_of_the_next_transaction() -> None:
    """Of the first generation, whose epoch stays (KAFKA-17754): it is open again, but nobody asked for this batch."""
    states = ProducerStates()
    late = states.guard(7, 4, 0, False)
    states.end_transaction(*marker(ABORT, 0, epoch=4))
    states.check_transactional(batch(0, base=1, epoch=4, transactional=True), states.guard(7, 4, 0, False))
    states.update(batch(0, base=1, epoch=4, transactional=True))
    overtaken = batch(1, base=2, epoch=4, transactional=True)
    assert transactional_code(states, overtaken, late) is ErrorCode.INVALID_TXN_STATE
    assert states.check_transactional(overtaken, None) is None
    assert states.check_transactional(batch(0, transactional=True, epoch=4), late) == (1, 5, 1), "that is stored"


def test_a_guard_is_of_one_epoch() -> None:
    states = ProducerStates()
    old = states.guard(7, 3, 0, True)
    new = states.guard(7, 4, 0, True)
    assert old is not new
    assert transactional_code(states, batch(0, epoch=3, transactional=True), old) is ErrorCode.INVALID_TXN_STATE
    states.update(batch(0, epoch=4, transactional=True))
    with pytest.raises(KafkaError) as caught:
        states.guard(7, 3, 0, True)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_later_batch_waits_for_the_one_that_has_asked_before() -> None:
    states = ProducerStates()
    for first, second in ((0, 3), (LAST, 0)):
        later = states.guard(7, 0, second, False)
        guard = states.guard(7, 0, first, False)
        assert guard is later
        assert transactional_code(states, batch(second, transactional=True), guard) is (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert states.check_transactional(batch(first, transactional=True), guard) is None
        states.drop_guard(guard)


def test_an_unknown_producer_of_the_second_generation_begins_with_0() -> None:
    states = ProducerStates()
    guard = states.guard(7, 0, 5, True)
    header = batch(5, transactional=True)
    assert transactional_code(states, header, guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    states.drop_guard(guard)
    assert states.check_transactional(header, states.guard(7, 0, 5, False)) is None


def test_guards_are_bounded() -> None:
    states = ProducerStates()
    first = states.guard(1, 0, 0, False)
    for producer in range(2, MOST_GUARDS + 2):
        states.guard(producer, 0, 0, False)
    assert transactional_code(states, batch(0, id=1, transactional=True), first) is ErrorCode.INVALID_TXN_STATE
    assert states.check_transactional(batch(0, id=2, transactional=True), states.guard(2, 0, 0, False)) is None


def test_a_coordinators_batch_has_no_sequence_and_is_no_last_batch() -> None:
    states = ProducerStates()
    states.update(batch(0, 3, epoch=1))
    own = batch(-1, 2, base=3, epoch=1, transactional=True)
    states.update(own)
    assert states.first_unstable_offset == 3
    assert [producer.batches for producer in states.active()] == [((0, 2, 0, 2, 5),)]
    states.update(batch(-1, base=5, epoch=2, transactional=True))
    assert [(producer.epoch, producer.batches) for producer in states.active()] == [(2, ())]


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
    restored.restore(decode_ours(ours) or [])
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
