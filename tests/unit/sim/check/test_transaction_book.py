"""What the book of transactions notices: each test plants one anomaly, and names the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.sim.check.coverage import Coverage
from duramen.sim.check.invariants import InvariantViolated, Ledger
from duramen.sim.check.transaction_book import (
    TRANSACTION_INVARIANTS,
    KnownTransaction,
    LogBatch,
    TransactionBook,
)

ONE, OTHER, CACHED = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("cached", 0)
FIRST, SECOND, THIRD = ProducerEpoch(7, 0), ProducerEpoch(7, 1), ProducerEpoch(7, 2)
COMMIT, ABORT = True, False


@pytest.fixture
def book() -> TransactionBook:
    return TransactionBook(Ledger({"orders"}), Coverage())


def begun(
    book: TransactionBook, name: str = "t:1:1", producer: ProducerEpoch = FIRST, *tps: TopicPartition
) -> KnownTransaction:
    """A transaction of the second generation with one record in each partition, whose commit was asked for."""
    transaction = book.began("t", name, 2, producer)
    for tp in tps or (ONE,):
        book.sent(transaction, tp, [value(name, tp)])
    transaction.commit_asked = True
    return transaction


def value(name: str, tp: TopicPartition) -> bytes:
    return f"{name}:{tp}".encode()


def data(offset: int, name: str, tp: TopicPartition = ONE, producer: ProducerEpoch = FIRST) -> LogBatch:
    return LogBatch(offset, producer, [value(name, tp)], None)


def marker(offset: int, committed: bool, producer: ProducerEpoch = SECOND) -> LogBatch:
    return LogBatch(offset, producer, [], committed)


def breaks(invariant: str, action: Callable[[], object]) -> None:
    assert invariant in TRANSACTION_INVARIANTS or invariant == "ExactlyOnce"
    with pytest.raises(InvariantViolated) as violated:
        action()
    assert violated.value.invariant == invariant


def test_a_transaction_that_is_whole_is_fine(book: TransactionBook) -> None:
    transaction = begun(book, "t:1:1", FIRST, ONE, OTHER)
    book.told(transaction, committed=True)
    for tp in (ONE, OTHER):
        book.seen(tp, 0, value("t:1:1", tp))
        book.log_read(tp, [data(0, "t:1:1", tp), marker(1, COMMIT)], [value("t:1:1", tp)])
    book.conclude()


def test_half_of_a_transaction(book: TransactionBook) -> None:
    begun(book, "t:1:1", FIRST, ONE, OTHER)
    book.log_read(ONE, [data(0, "t:1:1"), marker(1, COMMIT)], [value("t:1:1", ONE)])
    book.log_read(OTHER, [], [])
    breaks("Atomic", book.conclude)


def test_a_transaction_that_ended_in_two_ways(book: TransactionBook) -> None:
    begun(book, "t:1:1", FIRST, ONE, OTHER)
    book.log_read(ONE, [data(0, "t:1:1"), marker(1, COMMIT)], [value("t:1:1", ONE)])
    breaks("Atomic", lambda: book.log_read(OTHER, [data(0, "t:1:1", OTHER), marker(1, ABORT)], []))


def test_committed_and_lost(book: TransactionBook) -> None:
    book.told(begun(book), committed=True)
    book.log_read(ONE, [], [])
    breaks("Atomic", book.conclude)


def test_seen_in_a_page_cache_and_rolled_back_on_stable_storage(book: TransactionBook) -> None:
    begun(book, "t:1:1", FIRST, ONE, CACHED)
    book.seen(CACHED, 0, value("t:1:1", CACHED))
    book.ledger.power_failed()
    book.log_read(CACHED, [], [])
    book.log_read(ONE, [data(0, "t:1:1"), marker(1, ABORT)], [])
    breaks("Atomic", book.conclude)


def test_a_position_of_a_committed_transaction_is_lost(book: TransactionBook) -> None:
    transaction = begun(book)
    book.offsets_sent(transaction, "g", OTHER, 5)
    book.told(transaction, committed=True)
    breaks("Atomic", lambda: book.position_fetched("g", OTHER, -1, book.ledger.facts))


def test_readers_are_not_given_what_is_committed(book: TransactionBook) -> None:
    begun(book)
    breaks("Atomic", lambda: book.log_read(ONE, [data(0, "t:1:1"), marker(1, COMMIT)], []))


def test_a_record_whose_commit_nobody_asked_for_is_seen(book: TransactionBook) -> None:
    begun(book).commit_asked = False
    breaks("AbortedUnseen", lambda: book.seen(ONE, 0, value("t:1:1", ONE)))


def test_an_aborted_record_is_seen(book: TransactionBook) -> None:
    book.told(begun(book), committed=False)
    breaks("AbortedUnseen", lambda: book.seen(ONE, 0, value("t:1:1", ONE)))


def test_a_record_is_seen_and_then_aborted(book: TransactionBook) -> None:
    transaction = begun(book)
    book.seen(ONE, 0, value("t:1:1", ONE))
    breaks("AbortedUnseen", lambda: book.told(transaction, committed=False))


def test_a_position_of_an_aborted_transaction_is_told(book: TransactionBook) -> None:
    transaction = begun(book)
    book.offsets_sent(transaction, "g", OTHER, 5)
    book.told(transaction, committed=False)
    breaks("AbortedUnseen", lambda: book.position_fetched("g", OTHER, 5, book.ledger.facts))


def test_a_position_may_be_sent_by_a_late_life_too(book: TransactionBook) -> None:
    """The book knew the last sender only: a fenced one that had woken late, with the position of its successor."""
    for name, producer, committed in (("t:2:1", SECOND, True), ("t:1:1", FIRST, False)):
        transaction = begun(book, name, producer)
        book.offsets_sent(transaction, "g", OTHER, 5)
        book.told(transaction, committed=committed)
    book.position_fetched("g", OTHER, 5, book.ledger.facts)
    breaks("AbortedUnseen", lambda: book.position_fetched("g", OTHER, 6, book.ledger.facts))


def test_readers_are_given_what_is_aborted(book: TransactionBook) -> None:
    begun(book)
    found = [value("t:1:1", ONE)]
    breaks("AbortedUnseen", lambda: book.log_read(ONE, [data(0, "t:1:1"), marker(1, ABORT)], found))


def test_two_transactions_under_one_marker(book: TransactionBook) -> None:
    begun(book)
    begun(book, "t:1:2", SECOND)
    log = [data(0, "t:1:1"), data(1, "t:1:2", producer=SECOND), marker(2, COMMIT, THIRD)]
    breaks("NoLateMarker", lambda: book.log_read(ONE, log, []))


def test_a_batch_behind_the_end_of_its_transaction(book: TransactionBook) -> None:
    begun(book)
    log = [data(0, "t:1:1"), marker(1, COMMIT, FIRST), data(2, "t:1:1")]
    breaks("NoLateMarker", lambda: book.log_read(ONE, log, []))


def test_a_commit_marker_that_is_meant_for_another_one(book: TransactionBook) -> None:
    begun(book).commit_asked = False
    breaks("NoLateMarker", lambda: book.log_read(ONE, [data(0, "t:1:1"), marker(1, COMMIT)], []))


def test_a_marker_that_does_not_end_its_epoch(book: TransactionBook) -> None:
    begun(book)
    breaks("NoLateMarker", lambda: book.log_read(ONE, [data(0, "t:1:1"), marker(1, COMMIT, FIRST)], []))


def test_an_older_life_is_acknowledged(book: TransactionBook) -> None:
    book.began_life("t", FIRST)
    early = book.ledger.facts
    book.began_life("t", SECOND)
    book.accepted("t", FIRST, "a batch", early)  # it may have been there before
    breaks("FencedAnsweredOnce", lambda: book.accepted("t", FIRST, "a batch", book.ledger.facts))


def test_an_older_life_becomes_visible(book: TransactionBook) -> None:
    begun(book)
    begun(book, "t:2:1", SECOND)
    log = [data(0, "t:2:1", producer=SECOND), marker(1, COMMIT, THIRD), data(2, "t:1:1")]
    breaks("FencedAnsweredOnce", lambda: book.log_read(ONE, log, []))


def test_what_an_older_life_had_not_committed_never_is(book: TransactionBook) -> None:
    begun(book).commit_asked = False
    book.began_life("t", SECOND)
    breaks("AbortedUnseen", lambda: book.seen(ONE, 0, value("t:1:1", ONE)))


def test_an_end_that_is_answered_in_two_ways(book: TransactionBook) -> None:
    transaction = begun(book)
    book.told(transaction, committed=True)
    breaks("FencedAnsweredOnce", lambda: book.told(transaction, committed=False))


def test_a_transaction_that_hangs(book: TransactionBook) -> None:
    begun(book)
    breaks("StableAdvances", lambda: book.log_read(ONE, [data(0, "t:1:1")], []))


def test_a_stable_offset_that_steps_back(book: TransactionBook) -> None:
    book.stable_seen(ONE, 0, 5, 9, 0)
    breaks("StableAdvances", lambda: book.stable_seen(ONE, 0, 4, 9, book.ledger.facts))


def test_a_stable_offset_below_the_log_start(book: TransactionBook) -> None:
    breaks("StableAdvances", lambda: book.stable_seen(ONE, 5, 4, 9, 0))


def test_a_page_cache_may_lose_its_end(book: TransactionBook) -> None:
    book.stable_seen(CACHED, 0, 5, 9, 0)
    book.ledger.power_failed()
    book.power_failed()
    book.stable_seen(CACHED, 0, 4, 4, book.ledger.facts)


def test_a_record_that_is_there_twice(book: TransactionBook) -> None:
    begun(book)
    log = [data(0, "t:1:1"), data(1, "t:1:1"), marker(2, COMMIT)]
    breaks("ExactlyOnce", lambda: book.log_read(ONE, log, []))
