"""Named writers: one sequence for each batch, and what is at or below the last one is a duplicate for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.segment.test_producer_state import HOME, batch, refused

from duramen.errors import ErrorCode, KafkaError
from duramen.model import is_named, named_producer_id
from duramen.storage.segment.producer_snapshot import decode_ours, encode_ours
from duramen.storage.segment.producer_state import RESTORED, RETRY_MS, WRITER_EXPIRATION_MS, Duplicate, ProducerStates
from duramen.wire.batch import MAX_SEQUENCE

WRITER = named_producer_id("orders")
DAY = 86_400_000


def test_names_become_ids_of_their_own_range() -> None:
    assert all(is_named(named_producer_id(name)) for name in ("", "a", "é", "x" * 4096))
    assert named_producer_id("a") != named_producer_id("b")
    assert named_producer_id("orders") == 2558837728684425500, "writers find what they wrote by it"
    assert not any(map(is_named, (-1, 0, (1 << 61) - 1, 1 << 62)))


def written(count: int, first: int = 0, records: int = 3) -> ProducerStates:
    """Each batch has so many records."""
    states = ProducerStates()
    for number in range(count):
        header = batch((first + number) & MAX_SEQUENCE, records, base=number * records, id=WRITER)
        states.update(header)
    return states


def test_old_batches_are_duplicates_without_a_place() -> None:
    states = written(9)
    assert states.check(batch(9, 2, id=WRITER)) is None
    assert states.check(batch(8, 3, id=WRITER)) == Duplicate(24, 5, 26)
    assert states.check(batch(4, 3, id=WRITER)) == Duplicate(12, 5, 14)
    for number in range(4):
        assert states.check(batch(number, 1, id=WRITER)) == Duplicate(-1, -1, 11)
    assert refused(states, batch(10, id=WRITER)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_epoch_begins_with_0() -> None:
    states = ProducerStates()
    assert refused(states, batch(3, id=WRITER)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(0, id=WRITER, epoch=4)) is None
    states.update(batch(0, id=WRITER, epoch=4))
    assert refused(states, batch(1, id=WRITER, epoch=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, batch(1, id=WRITER, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(batch(0, id=WRITER, epoch=5)) is None


def test_sequences_go_round() -> None:
    states = written(6, first=MAX_SEQUENCE - 2)
    assert states.get(WRITER).last_sequence == 2  # type: ignore[union-attr]
    assert states.check(batch(3, id=WRITER)) is None
    assert states.check(batch(MAX_SEQUENCE, 3, id=WRITER)) == Duplicate(6, 5, 8)
    assert states.check(batch(MAX_SEQUENCE - 2, 3, id=WRITER)) == Duplicate(-1, -1, 2)


def test_they_are_known_for_longer() -> None:
    states = written(1)
    states.update(batch(0, id=7))
    assert states.expire(0, DAY) == 0
    assert states.expire(DAY, DAY) == 1
    assert states.expire(WRITER_EXPIRATION_MS - 1, DAY) == 0
    assert states.expire(WRITER_EXPIRATION_MS, DAY) == 1
    again = written(1)
    again.get(WRITER).idle_since_ms = RESTORED  # type: ignore[union-attr]
    assert again.expire(50 * DAY, DAY, writer_expiration_ms=2 * RETRY_MS) == 0
    assert again.expire(50 * DAY + 2 * RETRY_MS, DAY, writer_expiration_ms=2 * RETRY_MS) == 1


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(-8, 3), st.integers(1, 4), st.integers(0, 9)), max_size=40)


@pytest.mark.parametrize("first", [0, MAX_SEQUENCE - 4])
@given(STEPS)
def test_random_sequences_are_stored_once_and_in_order(first: int, steps: list[tuple[int, int, int, int]]) -> None:
    """Sequences of the model are not bounded; what is sent is near the last one, before and behind."""
    states, stored, base = ProducerStates(), {}, 0
    if first:  # as if it had come so far
        states.update(batch(first - 1, base=0, id=WRITER))
        stored[first - 1] = (0, 0)
        base = 1
    epoch = 0
    for new_epoch, distance, count, action in steps:
        last = max(stored, default=-1)
        wanted = max(last + distance, 0)
        if new_epoch and action == 0:
            epoch, stored, last, wanted = epoch + 1, {}, -1, 0
        header = batch(wanted & MAX_SEQUENCE, count, base=base, id=WRITER, epoch=epoch)
        if wanted > last + 1:
            assert refused(states, header) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            continue
        if wanted == last + 1:
            assert states.check(header) is None
            states.update(header)
            stored[wanted] = (base, base + count - 1)
            base += count
        else:
            found = states.check(header)
            assert found is not None
            if wanted > last - min(5, len(stored)):
                assert (found.base_offset, found.last_offset) == stored[wanted]
            else:
                assert (found.base_offset, found.last_offset) == (-1, stored[last - min(5, len(stored)) + 1][0] - 1)
        if action == 9:
            data = encode_ours(states, HOME)
            states = ProducerStates()
            states.restore(decode_ours(data, HOME) or [])


def test_a_gap_says_what_is_expected() -> None:
    with pytest.raises(KafkaError, match="sequence 12 of epoch 0, expected is 9"):
        written(9).check(batch(12, id=WRITER))
