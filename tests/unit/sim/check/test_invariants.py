"""Each invariant fails when its promise is broken, and only then; late replies are held against what was known."""

from __future__ import annotations

import pytest

from duramen.model import TopicPartition
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Keyed, KeyedRecord, Ledger, Retention

STABLE = TopicPartition("stable", 0)
LOOSE = TopicPartition("loose", 0)


def value(number: int, producer: str = "p") -> bytes:
    return f"{producer}:{number:06} ".encode()


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger({"stable"})
    for tp in (STABLE, LOOSE):
        ledger.produced(tp, [value(number) for number in range(10)], 0, 1000)
    return ledger


def broken(name: str) -> object:
    return pytest.raises(InvariantViolated, match=f"^{name}: ")


def everything(*numbers: int, epoch: int = 1, start: int = 0) -> list[tuple[int, int, bytes]]:
    return [(start + place, epoch, value(number)) for place, number in enumerate(numbers)]


def test_a_good_history_breaks_nothing(ledger: Ledger) -> None:
    for offset in range(5):
        ledger.acknowledged(STABLE, offset, value(offset), ledger.facts)
        ledger.read(STABLE, offset, 1, value(offset), ledger.facts)
        ledger.end_seen(STABLE, offset + 1, ledger.facts)
    ledger.committed("g", STABLE, 3, ledger.facts)
    ledger.position_fetched("g", STABLE, 3, ledger.facts)
    ledger.deletion_asked(STABLE, 2)
    ledger.start_seen(STABLE, 2, ledger.facts)
    ledger.start_seen(STABLE, 2, ledger.facts)
    ledger.final(STABLE, 2, everything(2, 3, 4, start=2))


def test_an_acknowledged_record_is_missed(ledger: Ledger) -> None:
    ledger.acknowledged(STABLE, 1, value(1), ledger.facts)
    with broken("AcknowledgedNeverLost"):
        ledger.final(STABLE, 0, everything(0))
    with broken("AcknowledgedNeverLost"):
        ledger.end_seen(STABLE, 1, ledger.facts)


def test_a_read_record_is_missed(ledger: Ledger) -> None:
    ledger.read(STABLE, 1, 1, value(1), ledger.facts)
    with broken("NothingReadVanishes"):
        ledger.final(STABLE, 0, everything(0))
    with broken("NothingReadVanishes"):
        ledger.end_seen(STABLE, 1, ledger.facts)


def test_a_late_reply_is_not_held_against_what_others_learned_meanwhile(ledger: Ledger) -> None:
    asked = ledger.facts
    ledger.acknowledged(STABLE, 9, value(9), ledger.facts)
    ledger.committed("g", STABLE, 9, asked)
    ledger.end_seen(STABLE, 1, asked)
    ledger.position_fetched("g", STABLE, -1, asked)
    ledger.committed("g", STABLE, 4, asked)


def test_an_offset_names_one_record(ledger: Ledger) -> None:
    ledger.acknowledged(STABLE, 0, value(1), ledger.facts)
    with broken("OffsetStability"):
        ledger.read(STABLE, 0, 2, value(2), ledger.facts)


def test_a_page_cache_topic_may_lose_its_tail_but_not_reuse_it_in_the_same_epoch(ledger: Ledger) -> None:
    ledger.acknowledged(LOOSE, 0, value(1), ledger.facts)
    ledger.read(LOOSE, 0, 1, value(1), ledger.facts)
    ledger.power_failed()
    ledger.final(LOOSE, 0, [])
    ledger.read(LOOSE, 0, 2, value(2), ledger.facts)
    ledger.power_failed()
    with broken("NoOffsetReusedInAnEpoch"):
        ledger.read(LOOSE, 0, 2, value(3), ledger.facts)


def test_a_page_cache_topic_keeps_until_power_fails_what_it_acknowledged_or_showed(ledger: Ledger) -> None:
    ledger.acknowledged(LOOSE, 0, value(0), ledger.facts)
    with broken("AcknowledgedNeverLost"):
        ledger.final(LOOSE, 0, [])
    with broken("AcknowledgedNeverLost"):
        ledger.end_seen(LOOSE, 0, ledger.facts)
    with broken("OffsetStability"):
        ledger.read(LOOSE, 0, 2, value(2), ledger.facts)
    sent = ledger.facts
    ledger.power_failed()
    ledger.acknowledged(LOOSE, 1, value(1), sent)  # on its way when power failed
    ledger.end_seen(LOOSE, 0, ledger.facts)
    ledger.read(LOOSE, 0, 2, value(2), ledger.facts)
    with broken("NothingReadVanishes"):
        ledger.end_seen(LOOSE, 0, ledger.facts)


def test_a_page_cache_topic_holds_a_record_once_until_power_fails(ledger: Ledger) -> None:
    with broken("ExactlyOnce"):
        ledger.final(LOOSE, 0, [(0, 1, value(1)), (1, 1, value(1))])
    ledger.power_failed()
    ledger.final(LOOSE, 0, [(0, 1, value(1)), (1, 2, value(2))])


def test_order_and_gaps(ledger: Ledger) -> None:
    with broken("Order"):
        ledger.final(LOOSE, 0, everything(1, 0))
    with broken("Order"):
        ledger.final(LOOSE, 0, [(0, 1, value(0)), (2, 1, value(1))])
    with broken("Order"):
        ledger.final(LOOSE, 0, [(0, 2, value(0)), (1, 1, value(1))])
    ledger.final(LOOSE, 0, [(0, 1, value(5)), (1, 1, value(0, "q")), (2, 2, value(6))])


def test_a_repeated_record_is_noticed(ledger: Ledger) -> None:
    with pytest.raises(InvariantViolated):
        ledger.final(STABLE, 0, everything(1, 1))


def test_deleted_records_stay_deleted(ledger: Ledger) -> None:
    for before in (3, 4, 5, 9):
        ledger.deletion_asked(STABLE, before)
    ledger.start_seen(STABLE, 9, ledger.facts)
    ledger.start_seen(STABLE, 3, ledger.facts)
    ledger.deleted(STABLE, 5)
    ledger.start_seen(STABLE, 5, ledger.facts)
    with broken("LogStartNeverGoesBack"):
        ledger.start_seen(STABLE, 4, ledger.facts)


def test_a_log_begins_where_it_was_asked_to(ledger: Ledger) -> None:
    ledger.start_seen(STABLE, 0, ledger.facts)
    ledger.deletion_asked(STABLE, 5)
    ledger.start_seen(STABLE, 5, ledger.facts)
    with broken("TruncationExact"):
        ledger.start_seen(STABLE, 4, ledger.facts)


def test_nothing_is_read_that_nobody_sent(ledger: Ledger) -> None:
    with broken("OnlyWhatWasProduced"):
        ledger.read(LOOSE, 0, 1, value(3, "stranger"), ledger.facts)


def expiring(limits: Retention) -> Ledger:
    """Offsets 0 to 9, one byte each, with timestamps 0, 100, 200..."""
    ledger = Ledger({"stable"}, {"stable": limits})
    for number in range(10):
        ledger.produced(STABLE, [value(number)], number * 100, 1)
        ledger.acknowledged(STABLE, number, value(number), ledger.facts)
    return ledger


def test_retention_by_time_is_not_early() -> None:
    ledger = expiring(Retention(ms=1000))
    ledger.broker_wall_ms = lambda: 1200
    ledger.start_seen(STABLE, 3, 0)
    with broken("RetentionNeverEarly"):
        ledger.start_seen(STABLE, 4, 0)


def test_retention_by_size_leaves_enough() -> None:
    ledger = expiring(Retention(bytes=4))
    ledger.produced(STABLE, [value(10)], 1000, 1)
    ledger.start_seen(STABLE, 8, 0)
    with broken("RetentionNeverEarly"):
        ledger.start_seen(STABLE, 9, 0)


def test_group_positions_grow(ledger: Ledger) -> None:
    ledger.committed("g", STABLE, 5, ledger.facts)
    ledger.position_fetched("other", STABLE, -1, ledger.facts)
    with broken("GroupOffsetsMonotone"):
        ledger.position_fetched("g", STABLE, 4, ledger.facts)
    with broken("GroupOffsetsMonotone"):
        ledger.committed("g", STABLE, 4, ledger.facts)


def test_highest_known() -> None:
    known = HighestKnown()
    assert known.at(100) == -1
    for fact, number in ((2, 10), (3, 7), (5, 20)):
        known.learn(fact, number)
    assert [known.at(fact) for fact in (1, 2, 3, 4, 5, 9)] == [-1, 10, 10, 10, 20, 20]


def test_a_tombstone_is_not_missing_before_its_time() -> None:
    ledger = Ledger({"stable"})
    ledger.tombstones_stay_ms["stable"] = 1000
    now = 0
    ledger.passed_ms = lambda: now
    sent = [Keyed(b"0", b"a", b"value"), Keyed(b"1", b"b", b"value"), Keyed(b"2", b"a", None)]
    for offset, record in enumerate(sent):
        ledger.keyed_produced(STABLE, record)
        ledger.keyed_acknowledged(STABLE, offset, record)
    left = [KeyedRecord(1, b"b", b"value")]
    now = 999
    with broken("CompactionKeepsTheLast"):
        ledger.folded(STABLE, left, ledger.facts)
    ledger.folded(STABLE, [*left, KeyedRecord(2, b"a", None)], ledger.facts)
    now = 1000
    ledger.folded(STABLE, left, ledger.facts)
    with broken("CompactionKeepsTheLast"):
        ledger.folded(STABLE, [], ledger.facts)
