"""Batches behind one that is refused for a while: none is stored out of order, or asks for another epoch."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.partition_world import Bench, plain

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.retry_gate import MAX_PRODUCERS, REMEMBERED_S, RetryGate
from duramen.partition.replica.rewrite_queue import MAX_QUEUED_BEHIND_REWRITE
from duramen.storage.segment.producer_state import ProducerStates
from duramen.wire.batch import MAX_SEQUENCE, parse_header

FULL = ErrorCode.KAFKA_STORAGE_ERROR
REMEMBERED_MS = int(1000 * REMEMBERED_S)


def batch(sequence: int, producer: int = 7, epoch: int = 0) -> bytearray:
    return plain(str(sequence).encode(), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def told(answer: Appended | KafkaError) -> Any:
    """The offset, or the error's code."""
    return answer.code if isinstance(answer, KafkaError) else answer.base_offset


def has_room(bench: Bench, room: bool) -> None:
    bench.directory.journal.no_room = None if room else OSError(errno.ENOSPC, "no room")


def bench_that_refused(*sequences: int, stored: tuple[int, ...] = ()) -> Bench:
    bench = Bench()
    for sequence in stored:
        bench.produce(batch(sequence))
    has_room(bench, False)
    assert [told(bench.produce(batch(sequence))) for sequence in sequences] == [FULL] * len(sequences)
    has_room(bench, True)
    return bench


@pytest.mark.parametrize("stored", [(), (0, 1)], ids=["a producer that is not known", "one that is"])
def test_what_is_behind_a_refused_batch_is_refused_the_same_way_until_it_has_come_again(
    stored: tuple[int, ...],
) -> None:
    first = len(stored)
    bench = bench_that_refused(first, first + 1, stored=stored)
    assert [told(bench.produce(batch(first + n))) for n in (2, 3, 4)] == [FULL] * 3
    assert [told(bench.produce(batch(n))) for n in stored] == list(stored)  # what is stored is known again
    assert told(bench.produce(batch(first))) == first
    assert told(bench.produce(batch(first + 3))) == FULL
    assert [told(bench.produce(batch(first + n))) for n in (1, 2, 3, 4)] == [first + n for n in (1, 2, 3, 4)]
    assert bench.values() == [str(n).encode() for n in range(first + 5)]


def test_a_fenced_producer_is_told_so_whatever_was_refused_before() -> None:
    """Seed 81 of three nodes and streams: a batch that came late let it be asked to come again for a minute."""
    bench = bench_that_refused(1, stored=(0,))
    assert told(bench.produce(batch(0, epoch=1))) == 1
    assert told(bench.produce(batch(2))) == ErrorCode.INVALID_PRODUCER_EPOCH
    has_room(bench, False)
    bench.produce(batch(1))  # late: the disk is full, and it is fenced
    has_room(bench, True)
    assert [told(bench.produce(batch(n))) for n in (1, 2)] == [ErrorCode.INVALID_PRODUCER_EPOCH] * 2


def test_the_time_counts_from_the_last_refusal_of_the_one_that_comes_first() -> None:
    bench = bench_that_refused(1, stored=(0,))
    bench.clock.now_ms += REMEMBERED_MS - 1
    has_room(bench, False)
    assert told(bench.produce(batch(1))) == FULL
    has_room(bench, True)
    bench.clock.now_ms += REMEMBERED_MS - 1
    assert told(bench.produce(batch(3))) == FULL
    bench.clock.now_ms += 1
    assert told(bench.produce(batch(3))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_that_is_set_meanwhile_lets_nothing_pass(jump_ms: int) -> None:
    bench = bench_that_refused(0)
    bench.clock.wall_ahead_ms = jump_ms
    assert told(bench.produce(batch(1))) == FULL
    assert [told(bench.produce(batch(n))) for n in (0, 1)] == [0, 1]


def test_another_epoch_and_another_producer_are_not_held_up() -> None:
    bench = bench_that_refused(0)
    assert told(bench.produce(batch(5, producer=8))) == 0
    assert told(bench.produce(batch(0, epoch=1))) == 1
    assert told(bench.produce(batch(1, epoch=1))) == 2
    assert told(bench.produce(plain(b"without"))) == 3


def test_sequences_go_on_at_nought() -> None:
    bench = bench_that_refused(MAX_SEQUENCE)
    assert told(bench.produce(batch(0))) == FULL
    assert told(bench.produce(batch(MAX_SEQUENCE))) == 0
    assert [told(bench.produce(batch(n))) for n in (1, 0, 1)] == [FULL, 1, 2]


def test_too_few_replicas_refuse_for_a_while_too() -> None:
    bench = Bench(min_insync_replicas="2")
    assert told(bench.produce(batch(0))) == ErrorCode.NOT_ENOUGH_REPLICAS
    bench.reconfigure(min_insync_replicas="1")
    assert told(bench.produce(batch(1))) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [told(bench.produce(batch(n))) for n in (0, 1)] == [0, 1]


def test_so_does_a_partition_with_too_much_to_recompress() -> None:
    bench = Bench(compression_type="gzip")
    answers = [bench.send(batch(n)) for n in range(MAX_QUEUED_BEHIND_REWRITE + 2)]
    (refused,) = answers.pop()
    assert told(refused) == ErrorCode.REQUEST_TIMED_OUT
    last = len(answers)
    bench.run()
    assert [told(answer) for (answer,) in answers] == list(range(last))
    assert told(bench.produce(batch(last + 1))) == ErrorCode.REQUEST_TIMED_OUT
    assert [told(bench.produce(batch(last + n))) for n in (0, 1)] == [last, last + 1]


def test_what_is_wrong_with_a_batch_itself_holds_nothing_up() -> None:
    bench = Bench(max_message_bytes="200")
    large = plain(bytes(500), producer_id=7, producer_epoch=0, base_sequence=0)
    assert told(bench.produce(large)) == ErrorCode.MESSAGE_TOO_LARGE
    assert told(bench.produce(batch(1))) == 0
    has_room(bench, False)
    assert told(bench.produce(b"x" * 30)) == ErrorCode.INVALID_RECORD
    assert told(bench.produce(plain(b"without"))) == FULL
    assert not bench.partition.retry_gate


def test_a_refusal_is_remembered_for_longer_than_its_answer_may_wait_for_an_earlier_one() -> None:
    """Answers go in order: behind one that comes only when the request times out, who sends hears of none."""
    now = 1.0
    retry_gate = RetryGate(ProducerStates(), lambda: now)
    retry_gate.remember(memoryview(batch(0)), KafkaError(FULL, "no room"))
    now += 30.0 + 1.0  # request.timeout.ms, and some more
    with pytest.raises(KafkaError) as raised:
        retry_gate.check(parse_header(memoryview(batch(1))))
    assert raised.value.code == FULL


def test_what_is_remembered_is_bounded_and_goes() -> None:
    now = 1.0
    retry_gate = RetryGate(ProducerStates(), lambda: now)
    error = KafkaError(FULL, "no room")
    for producer in range(MAX_PRODUCERS + 10):
        retry_gate.remember(memoryview(batch(0, producer)), error)
    assert len(retry_gate._producers) == MAX_PRODUCERS
    now += REMEMBERED_S
    retry_gate.remember(memoryview(batch(0, 5)), error)
    assert list(retry_gate._producers) == [5]


@given(st.randoms(use_true_random=False))
def test_five_in_flight_through_any_refusals_are_stored_once_and_in_order(random: Random) -> None:
    """A client as KIP-98 has it: what was refused for a while goes again, in order, with what is new behind it."""
    bench = Bench()
    total, stored = 12, 0
    while stored < total:
        flight = range(stored, min(stored + 5, total))
        answers = []
        for sequence in flight:
            has_room(bench, random.random() < 0.7)
            answers.append(told(bench.produce(batch(sequence))))
        assert set(answers) <= {FULL, *range(total)}
        while stored < total and stored - flight[0] < len(answers) and answers[stored - flight[0]] != FULL:
            stored += 1
    assert bench.values() == [str(n).encode() for n in range(total)]


def test_a_stored_batch_that_is_refused_when_it_comes_again_holds_nothing_up() -> None:
    """Its producer was not told, or a closed connection still brings it: perhaps nobody sends it a third time."""
    bench = Bench()
    assert [told(bench.produce(batch(n))) for n in (0, 1)] == [0, 1]
    bench.reconfigure(min_insync_replicas="2")
    assert [told(bench.produce(batch(n))) for n in (0, 1)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    bench.reconfigure(min_insync_replicas="1")
    assert [told(bench.produce(batch(n))) for n in (1, 2)] == [1, 2]


def test_a_straggler_of_an_older_epoch_does_not_end_what_is_waited_for() -> None:
    bench = Bench(min_insync_replicas="2")
    refused = [bench.produce(batch(0, epoch=1)), bench.produce(batch(5, epoch=0))]
    assert [told(answer) for answer in refused] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    bench.reconfigure(min_insync_replicas="1")
    assert told(bench.produce(batch(1, epoch=1))) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [told(bench.produce(batch(n, epoch=1))) for n in (0, 1)] == [0, 1]


def test_batches_that_had_to_wait_for_recompression_do_not_end_it_either() -> None:
    bench = Bench(compression_type="gzip")
    answers = [bench.send(batch(n)) for n in range(MAX_QUEUED_BEHIND_REWRITE + 1)]
    bench.clock.now_ms += 1
    assert told(*bench.send(batch(len(answers)))) == ErrorCode.REQUEST_TIMED_OUT
    bench.run()
    assert [told(answer) for (answer,) in answers] == list(range(len(answers)))
    assert told(bench.produce(batch(len(answers) + 1))) == ErrorCode.REQUEST_TIMED_OUT


def test_what_is_refused_in_its_turn_is_waited_for_from_then_on() -> None:
    bench = bench_that_refused(1, stored=(0,))
    assert told(bench.produce(batch(1))) == 1
    bench.clock.now_ms += REMEMBERED_MS - 1
    has_room(bench, False)
    assert told(bench.produce(batch(2))) == FULL
    has_room(bench, True)
    bench.clock.now_ms += 1
    assert told(bench.produce(batch(3))) == FULL
    assert [told(bench.produce(batch(n))) for n in (2, 3)] == [2, 3]
