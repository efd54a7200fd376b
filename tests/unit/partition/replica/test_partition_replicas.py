"""A partition among other replicas: what their leader reads, what a follower is told, and who watches the end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import NOW, Bench, joined, plain

from duramen.errors import BugError, ErrorCode, KafkaError
from duramen.partition.replica.offset_lookup import delete_records, divergence
from duramen.partition.replica.partition import READ_UNCOMMITTED, Partition
from duramen.storage import append_as_follower
from duramen.wire.batch import batches, parse_header


def three(isr: tuple[int, ...] = (1, 2, 3), epoch: int = 2, **configs: str) -> Bench:
    bench = Bench(epoch=None, **configs)
    bench.partition.lead(epoch, (1, 2, 3), isr, 1)
    bench.run()
    return bench


def answer_of(answers: list[Any]) -> Any:
    return answers[0] if answers else None


def append(bench: Bench, offset: int, epoch: int, count: int = 1) -> None:
    data = plain(*[b"v"] * count, base_offset=offset, leader_epoch=epoch)
    append_as_follower(bench.partition.log, data, parse_header(data), NOW)
    bench.partition.touched()


# ---- leading -----------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_every_copy_in_sync_and_all_ends_are_taken_first() -> None:
    bench = three()
    answers = bench.send(plain(b"a", b"b"))
    bench.run()
    partition = bench.partition
    assert not partition.fetched_by(2, 7, 2, 1.0)
    assert partition.fetched_by(3, 7, 2, 1.0)
    assert answers == []
    partition.settle_fetched()
    assert answer_of(answers).base_offset == 0
    assert partition.high_watermark == 2


def test_a_replica_reads_what_is_not_synced_and_nothing_that_is_not_written() -> None:
    bench = three()
    bench.lanes.held.add("journal")
    bench.send(plain(b"a"))
    bench.send(plain(b"b", b"c"))
    partition = bench.partition
    assert partition.read_as_replica(0, 1 << 20, True).parts == []
    bench.run()
    assert partition.durable_end == 0
    read = partition.read_as_replica(0, 1 << 20, True)
    headers = [header for _, header in batches(joined(read.parts))]
    assert [(header.base_offset, header.count, header.leader_epoch) for header in headers] == [(0, 1, 2), (1, 2, 2)]
    assert (read.next_offset, read.high_watermark, read.log_start_offset, read.aborted) == (3, 0, 0, None)
    assert partition.read(0, 1 << 20, READ_UNCOMMITTED).size == 0
    assert partition.read_as_replica(3, 1 << 20, True).parts == []
    with pytest.raises(KafkaError) as beyond:
        partition.read_as_replica(4, 1 << 20, True)
    assert beyond.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    bench.lanes.held.clear()
    bench.run()


def test_other_in_sync_replicas_in_the_same_epoch_are_taken_over() -> None:
    bench = three()
    answers = bench.send(plain(b"a"))
    bench.run()
    bench.partition.fetched_by(2, 7, 1, 1.0)
    bench.partition.lead(2, (1, 2, 3), (1, 2), 1)
    assert answers == [], "that partition epoch is known"
    bench.partition.lead(2, (1, 2, 3), (1, 2), 2)
    assert answer_of(answers).base_offset == 0
    assert bench.partition.replication.isr == (1, 2)
    bench.partition.lead(2, (1, 2, 3), (1, 2, 3), 1)
    assert bench.partition.replication.isr == (1, 2), "older than what is known"


def test_who_waits_for_acks_all_is_told_at_once_when_too_few_are_in_sync() -> None:
    bench = three(min_insync_replicas="2")
    waiting, here = bench.send(plain(b"a")), bench.send(plain(b"b"), acks=1)
    bench.run()
    assert answer_of(here).base_offset == 1
    bench.partition.lead(2, (1, 2, 3), (1,), 2)
    assert answer_of(waiting).code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert bench.partition.high_watermark == 0
    bench.reconfigure(min_insync_replicas="1")
    assert bench.partition.high_watermark == 2, "one is enough now"


def test_a_new_epoch_keeps_the_high_watermark_and_forgets_who_had_what() -> None:
    bench = three((1, 2))
    bench.send(plain(b"a"))
    bench.run()
    bench.partition.fetched_by(2, 7, 1, 1.0)
    bench.partition.settle_fetched()
    answers = bench.send(plain(b"b"))
    bench.run()
    bench.partition.lead(3, (1, 2, 3), (1, 2), 2)
    assert (bench.partition.high_watermark, bench.partition.replication.epoch_start) == (1, 2)
    assert answers == []
    assert bench.partition.fetched_by(2, 7, 2, 1.0)
    bench.partition.settle_fetched()
    assert answer_of(answers).base_offset == 1


# ---- following ---------------------------------------------------------------------------------------------------


def test_a_follower_reads_up_to_what_the_leader_told_and_it_has_durably() -> None:
    bench = Bench(epoch=None)
    partition = bench.partition
    woken: list[int] = []
    partition.watch(lambda: woken.append(partition.high_watermark))
    partition.resign(2, 3, (1, 2), (1, 2))
    bench.lanes.held.add("journal")
    append(bench, 0, 3, 2)
    bench.run()
    partition.follow_watermark(1)
    assert (partition.high_watermark, woken) == (0, [])
    bench.lanes.held.clear()
    bench.run()
    assert (partition.high_watermark, woken) == (1, [1])
    partition.follow_watermark(9)
    assert (partition.high_watermark, woken) == (2, [1, 2])
    partition.follow_watermark(0)
    assert partition.high_watermark == 2
    partition.resign(3, 4, (1, 2, 3), (2, 3))
    append(bench, 2, 4)
    bench.run()
    assert partition.high_watermark == 2, "the new leader has told nothing"
    assert partition.replication.replicas == (1, 2, 3)


def test_a_cut_takes_the_end_and_the_high_watermark_with_it() -> None:
    bench = Bench()
    for value in (b"a", b"b", b"c"):
        bench.produce(plain(value))
    partition = bench.partition
    with pytest.raises(BugError):
        partition.truncate_to(1)
    partition.resign(2, 3)
    partition.truncate_to(1)
    assert (partition.log_end_offset, partition.high_watermark, partition.replication.own_end) == (1, 1, 1)
    partition.follow_watermark(3)
    bench.run()
    assert partition.high_watermark == 1
    append(bench, 1, 3, 4)
    bench.run()
    assert partition.high_watermark == 3


# ---- comparing histories -----------------------------------------------------------------------------------------


def test_the_histories_of_replicas_are_compared_by_the_epochs_of_their_records() -> None:
    bench = Bench()
    for _ in range(3):
        bench.produce(plain(b"a"))
    partition = bench.partition
    partition.lead(4, (1,), (1,), 1)
    bench.produce(plain(b"b"))
    partition.lead(6, (1,), (1,), 2)
    assert divergence(partition, -1, 0) is None, "it has nothing"
    assert divergence(partition, 1, 3) is None
    assert divergence(partition, 1, 5) == (1, 3)
    assert divergence(partition, 2, 2) == (1, 3)
    assert divergence(partition, 4, 4) is None
    assert divergence(partition, 4, 5) == (4, 4)
    assert divergence(partition, 5, 5) == (4, 4), "the epoch that is led has no record yet"
    assert divergence(partition, 6, 4) is None
    with pytest.raises(KafkaError) as unknown:
        divergence(partition, 7, 4)
    assert unknown.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_what_is_older_than_all_that_is_known_here_is_no_agreement() -> None:
    """A consumer's position of such an epoch passes; a replica's record in front of it may be of any history."""
    bench = Bench(epoch=4)
    for _ in range(3):
        bench.produce(plain(b"a"))
    partition = bench.partition
    assert divergence(partition, 3, 0) == (-1, 0)
    delete_records(partition, 2)
    bench.run()
    assert divergence(partition, 3, 2) == (-1, 2)
    assert divergence(partition, 4, 2) is None
    empty = Bench(epoch=4).partition
    assert divergence(empty, 3, 0) == (-1, 0)


# ---- watching the end --------------------------------------------------------------------------------------------


def test_whoever_watches_the_end_hears_of_what_a_replica_has_to_be_told() -> None:
    bench = three((1, 2))
    partition = bench.partition
    told: list[Partition] = []
    other: list[Partition] = []
    partition.watch_end(told.append)
    partition.watch_end(other.append)

    def heard() -> bool:
        heard = bool(told) and set(told) == {partition} and told == other
        told.clear()
        other.clear()
        return heard

    bench.lanes.held.add("journal")
    bench.send(plain(b"a"))
    assert heard(), "an append"
    bench.lanes.held.clear()
    bench.run()
    assert told == [], "that it is durable here says nothing new"
    partition.fetched_by(2, 7, 1, 1.0)
    partition.settle_fetched()
    assert heard(), "the high watermark"
    delete_records(partition, 1)
    assert heard(), "the log start"
    partition.lead(3, (1, 2), (1, 2), 2)
    assert heard(), "another epoch"
    partition.resign(2, 4)
    assert heard(), "another leader"
    bench.run()
    partition.unwatch_end(told.append)
    partition.unwatch_end(other.append)
    partition.unwatch_end(other.append)
    partition.lead(5, (1,), (1,), 3)
    bench.produce(plain(b"b"))
    assert (told, other) == ([], [])


def test_a_partition_that_nobody_watches_asks_for_nobody() -> None:
    partition = Bench().partition
    before = partition._on_touched
    partition.watch_end(print)
    partition.unwatch_end(print)
    assert partition._on_touched == before
    assert not partition._watchers


def test_a_new_leader_does_not_say_of_what_may_be_committed_that_it_is_not_there() -> None:
    bench = Bench(epoch=None)
    append(bench, 0, 1, 3)
    bench.run()
    bench.partition.lead(2, (1, 2, 3), (1, 2, 3), 1)
    bench.run()
    for offset, code in ((3, ErrorCode.OFFSET_NOT_AVAILABLE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE)):
        with pytest.raises(KafkaError) as caught:
            delete_records(bench.partition, offset)
        assert caught.value.code is code
    for node in (2, 3):
        bench.partition.fetched_by(node, 7, 3, 1.0)
    bench.partition.settle_fetched()
    assert delete_records(bench.partition, 3) == 3
    with pytest.raises(KafkaError) as caught:
        delete_records(bench.partition, 4)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
