"""Transactions at one partition: guards, markers, what a power cut leaves of both, and replicas that know the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import NOW, Bench, marker, plain, transactional

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.follower import append_batches, cut
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import READ_COMMITTED
from duramen.sim.world.disk import CrashDisk
from duramen.storage import TransactionGuard
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.wire.batch import ABORT, parse_header, place

P = ProducerEpoch(1, 0)


def guard_of(
    bench: Bench, producer: ProducerEpoch = P, sequence: int = 0, *, second: bool = False
) -> TransactionGuard | None:
    return transactional_writes.transaction_guard(bench.partition, producer, sequence, second)


def append(bench: Bench, batch: bytearray, guard: TransactionGuard | None) -> list[Appended | KafkaError]:
    answers: list[Appended | KafkaError] = []
    bench.partition.append(memoryview(batch), -1, NOW, answers.append, guard)
    return answers


def begin(bench: Bench, producer: int = 1, *values: bytes) -> None:
    guard = guard_of(bench, ProducerEpoch(producer, 0))
    answers = append(bench, transactional(producer, *(values or (b"t",))), guard)
    bench.run()
    assert isinstance(answers[0], Appended), answers


def end(
    bench: Bench,
    producer: ProducerEpoch = P,
    *,
    commit: bool = True,
    coordinator: int = 0,
    version: int = 0,
    is_ordered: bool = False,
) -> list[KafkaError | None]:
    answers: list[KafkaError | None] = []
    transactional_writes.append_marker(
        bench.partition, producer, commit, coordinator, version, NOW, answers.append, is_ordered=is_ordered
    )
    return answers


def sync_segment(bench: Bench) -> None:
    """Power takes nothing of what is there by now."""
    sync = take_sync(bench.partition.log)
    assert sync is not None
    sync.run()
    complete_sync(bench.partition.log, sync)


def code(answers: list[Any]) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, KafkaError), answer
    return answer.code


# ---- the first batch and its guard -------------------------------------------------------------------------------


def test_a_transaction_from_its_first_batch_to_its_marker() -> None:
    bench = Bench()
    assert code(append(bench, transactional(1, b"a"), None)) is ErrorCode.INVALID_TXN_STATE
    begin(bench)
    assert guard_of(bench, sequence=1) is None, "nobody has to be asked any more"
    answers = append(bench, transactional(1, b"b", sequence=1), None)
    bench.run()
    assert answers == [Appended(1, -1, 0)]
    assert bench.partition.last_stable_offset == 0
    ended = end(bench)
    assert ended == []
    bench.run()
    assert ended == [None]
    assert bench.partition.last_stable_offset == 3
    assert bench.values(0, READ_COMMITTED) == [b"t", b"b"]


def test_a_word_that_comes_behind_an_abort_is_worth_nothing() -> None:
    """It was of the transaction before; this partition is no part of the one that is open by now."""
    bench = Bench()
    guard = guard_of(bench)
    end(bench, commit=False)
    bench.run()
    assert code(append(bench, transactional(1, b"late"), guard)) is ErrorCode.INVALID_TXN_STATE
    assert bench.partition.last_stable_offset == bench.partition.high_watermark == 1


def test_a_batch_that_is_being_decoded_holds_its_guard_until_it_is_appended() -> None:
    for is_aborted in (False, True):
        bench = Bench(cleanup_policy="compact")
        guard = guard_of(bench)
        bench.lanes.held.add("rewriting")
        first = append(bench, transactional(1, b"first"), guard)
        second = append(bench, transactional(1, b"second", sequence=1), guard)
        bench.run()
        assert (first, second) == ([], [])
        if is_aborted:
            end(bench, commit=False)
        bench.lanes.held.clear()
        bench.run()
        if is_aborted:
            assert code(first) is code(second) is ErrorCode.INVALID_TXN_STATE
            assert bench.partition.last_stable_offset == bench.partition.high_watermark == 1
        else:
            assert [*first, *second] == [Appended(0, -1, 0), Appended(1, -1, 0)]


def test_a_batch_that_is_being_decoded_is_not_of_the_transaction_that_ended_meanwhile() -> None:
    bench = Bench(cleanup_policy="compact")
    begin(bench)
    bench.lanes.held.add("rewriting")
    late = append(bench, transactional(1, b"late", sequence=1), guard_of(bench))
    end(bench)
    bench.lanes.held.clear()
    bench.run()
    assert code(late) is ErrorCode.INVALID_TXN_STATE
    assert bench.partition.last_stable_offset == bench.partition.high_watermark == 2


def test_an_older_epoch_gets_no_guard() -> None:
    bench = Bench()
    end(bench, ProducerEpoch(1, 3), commit=False)
    with pytest.raises(KafkaError) as refused:
        guard_of(bench, ProducerEpoch(1, 2))
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_is_not_led_here_gives_neither_guard_nor_marker() -> None:
    bench = Bench()
    guard = guard_of(bench)
    bench.partition.resign(2, 5)
    with pytest.raises(KafkaError) as refused:
        guard_of(bench)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(append(bench, transactional(1, b"a"), guard)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(end(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_marker_is_refused_as_acks_all_is() -> None:
    bench = Bench(min_insync_replicas="2")
    assert code(end(bench)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.partition.log_end_offset == 0


def test_a_coordinators_batches_are_of_the_transaction_too() -> None:
    bench = Bench()
    own: dict[str, Any] = {"producer_id": 1, "base_sequence": -1, "transactional": True}
    with pytest.raises(KafkaError) as refused:
        bench.partition.append_local(plain(b"o", producer_epoch=0, **own), NOW, None)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    guard = guard_of(bench)
    transactional_writes.check_guard(bench.partition, P, guard)
    assert bench.partition.append_local(plain(b"o", producer_epoch=0, **own), NOW, guard) == 1
    transactional_writes.check_guard(bench.partition, P, None)
    assert bench.partition.append_local(plain(b"o", producer_epoch=0, **own), NOW) == 2
    end(bench, ProducerEpoch(1, 1), version=2)
    bench.run()
    with pytest.raises(KafkaError) as refused:
        bench.partition.append_local(plain(b"o", producer_epoch=0, **own), NOW)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    for guard_now, refusal in ((guard, ErrorCode.INVALID_PRODUCER_EPOCH), (None, ErrorCode.INVALID_PRODUCER_EPOCH)):
        with pytest.raises(KafkaError) as refused:
            transactional_writes.check_guard(bench.partition, P, guard_now)
        assert refused.value.code is refusal


# ---- markers -----------------------------------------------------------------------------------------------------


def test_a_repeated_marker_of_the_second_generation_waits_for_the_first_and_is_not_written() -> None:
    bench = Bench()
    begin(bench)
    bench.lanes.held.add("journal")
    both = end(bench, ProducerEpoch(1, 1), version=2), end(bench, ProducerEpoch(1, 1), version=2)
    bench.run()
    assert both == ([], [])
    bench.lanes.held.clear()
    bench.run()
    assert both == ([None], [None])
    assert bench.partition.log_end_offset == 2
    assert end(bench, ProducerEpoch(1, 1), version=2) == [None]
    assert code(end(bench, ProducerEpoch(1, 0), version=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(end(bench, ProducerEpoch(1, 1), coordinator=-1)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_thousands_of_transactions_open_at_once() -> None:
    bench = Bench()
    many = 3000
    for producer in range(many):
        append(bench, transactional(producer, b"t"), guard_of(bench, ProducerEpoch(producer, 0)))
    bench.run()
    assert bench.partition.log.producers.open_transactions == many
    for producer in range(many):
        end(bench, ProducerEpoch(producer, 0), commit=producer % 2 == 0)
    bench.run()
    assert bench.partition.last_stable_offset == bench.partition.high_watermark == 2 * many
    assert bench.partition.log.producers.open_transactions == 0


def test_records_may_be_deleted_past_an_open_transaction() -> None:
    bench = Bench()
    begin(bench)
    for value in (b"a", b"b"):
        bench.produce(plain(value))
    partition = bench.partition
    partition.log.advance_start(2)
    bench.run()
    assert (partition.last_stable_offset, partition.log_start_offset, partition.high_watermark) == (2, 2, 3)
    assert bench.values(2, READ_COMMITTED) == []
    end(bench, commit=False)
    bench.run()
    assert partition.last_stable_offset == 4
    assert bench.values(2, READ_COMMITTED) == [b"b"]


# ---- power cuts --------------------------------------------------------------------------------------------------


def test_a_marker_of_a_page_cache_topic_is_journaled_before_it_counts() -> None:
    disk = CrashDisk()
    bench = Bench(disk, duramen_ack_durability="page-cache")
    partition = bench.partition
    begin(bench)
    sync_segment(bench)
    bench.lanes.held.add("journal")
    ended = end(bench)
    bench.run()
    assert (ended, partition.last_stable_offset) == ([], 2), "readers see it, its coordinator does not yet"
    bench.lanes.held.clear()
    bench.run()
    assert ended == [None]
    assert partition.log.durable_end == 1, "the segment is not synced for it"
    bench.produce(plain(b"lost"))
    bench.run()
    disk.power_cut()
    disk.power_on()
    again = Bench(disk, epoch=2, duramen_ack_durability="page-cache")
    assert again.values(0, READ_COMMITTED) == [b"t"]
    assert again.partition.last_stable_offset == again.partition.log_end_offset == 2


def test_who_journals_after_a_marker_that_is_journaled_need_not_wait() -> None:
    bench = Bench(CrashDisk(), duramen_ack_durability="page-cache")
    begin(bench)
    bench.lanes.held.add("journal")
    assert end(bench, is_ordered=True) == [None]


def test_a_marker_from_before_the_other_copies_went_is_synced_when_it_is_asked_for_again() -> None:
    bench = Bench(CrashDisk(), duramen_ack_durability="page-cache")
    bench.partition.lead(2, (1, 2), (1,), 9)
    begin(bench)
    bench.lanes.held.add("checkpoint")
    first = end(bench)
    bench.partition.lead(3, (1,), (1,), 10)
    again = end(bench, version=2, is_ordered=True)
    bench.run()
    assert (first, again) == ([], []), "the journal does not have it"
    bench.lanes.held.clear()
    bench.run()
    assert (first, again) == ([None], [None])


def test_a_marker_of_a_page_cache_topic_with_copies_is_synced_before_it_counts() -> None:
    disk = CrashDisk()
    bench = Bench(disk, duramen_ack_durability="page-cache")
    bench.partition.lead(2, (1, 2), (1,), 9)
    begin(bench)
    bench.lanes.held.add("checkpoint")
    ended = end(bench)
    bench.run()
    partition = bench.partition
    assert (ended, partition.last_stable_offset) == ([], 2), "readers see it, its coordinator does not yet"
    more = end(bench, ProducerEpoch(2, 0))
    bench.run()
    assert more == []
    bench.lanes.held.clear()
    bench.run()
    assert (ended, more) == ([None], [None])
    assert partition.log.durable_end == 3
    disk.power_cut()
    disk.power_on()
    again = Bench(disk, epoch=2, duramen_ack_durability="page-cache")
    assert again.values(0, READ_COMMITTED) == [b"t"]
    assert again.partition.last_stable_offset == again.partition.log_end_offset == 3


def test_a_marker_that_waits_for_its_sync_is_told_when_the_topic_goes() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.partition.lead(2, (1, 2), (1,), 9)
    begin(bench)
    bench.lanes.held.add("checkpoint")
    ended = end(bench)
    bench.run()
    bench.store.delete_partition(bench.partition.tp)
    bench.lanes.held.clear()
    bench.run()
    assert code(ended) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_a_start_knows_epochs_coordinators_and_what_is_open(durability: str) -> None:
    disk = CrashDisk()
    bench = Bench(disk, duramen_ack_durability=durability)
    for producer in (1, 2, 3):
        begin(bench, producer)
    sync_segment(bench)
    ended = end(bench, ProducerEpoch(2, 1), coordinator=7, version=2)
    bench.run()
    assert ended == [None]
    disk.power_cut()
    disk.power_on()
    again = Bench(disk, epoch=2, duramen_ack_durability=durability)
    producers = again.partition.log.producers
    assert producers.open_transactions == 2
    oldest = producers.oldest_transaction
    assert oldest is not None
    assert (oldest.id, oldest.transaction_start, again.partition.last_stable_offset) == (1, 0, 0)
    assert code(end(again, ProducerEpoch(2, 2), coordinator=6, version=2)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert end(again, ProducerEpoch(2, 1), coordinator=7, version=2) == [None], "it is there"
    ended = end(again, ProducerEpoch(1, 0)) + end(again, ProducerEpoch(3, 0), commit=False)
    again.run()
    assert again.partition.read(0, 1 << 20, READ_COMMITTED).aborted == [(3, 2)]
    assert again.partition.last_stable_offset == again.partition.log_end_offset == 6


# ---- other replicas ----------------------------------------------------------------------------------------------


def at(offset: int, batch: bytearray) -> bytes:
    view = memoryview(batch)
    place(view, parse_header(view), offset, 4)
    return bytes(batch)


def test_a_follower_knows_what_its_leader_knows_and_cancels_guards() -> None:
    bench = Bench()
    guard = guard_of(bench)
    bench.partition.resign(2, 4, (1, 2), (1, 2))
    copied = b"".join([at(0, transactional(1, b"t")), at(1, marker(1, ABORT)), at(2, transactional(5, b"open"))])
    append_batches(bench.partition, bench.directory, memoryview(copied), 4, 0, 9)
    bench.run()
    bench.partition.lead(5, (1,), (1,), 9)
    late = append(bench, transactional(1, b"late", sequence=1), guard)
    assert code(late) is ErrorCode.INVALID_TXN_STATE
    assert bench.partition.last_stable_offset == 2
    assert guard_of(bench, ProducerEpoch(5, 0), 1) is None


def test_a_marker_that_is_cut_leaves_its_transaction_open() -> None:
    bench = Bench()
    begin(bench)
    guard = guard_of(bench, ProducerEpoch(9, 0))
    end(bench)
    bench.run()
    bench.partition.resign(2, 5, (1, 2), (1, 2))
    cut(bench.partition, bench.directory, 1)
    bench.run()
    bench.partition.lead(6, (1,), (1,), 9)
    assert (bench.partition.last_stable_offset, bench.partition.log_end_offset) == (0, 1)
    late = append(bench, transactional(9, b"late"), guard)
    assert code(late) is ErrorCode.INVALID_TXN_STATE, "guards end with the history they were of"
    ended = end(bench)
    bench.run()
    assert ended == [None]
    assert bench.values(0, READ_COMMITTED) == [b"t"]
