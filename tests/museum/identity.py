"""Who wrote what, and who has read how far: producers and groups that were forgotten too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.museum.exhibit import Replaced, exhibit, promise
from tests.museum.power import cut, reopened
from tests.worlds.partition_world import NOW, Bench, plain

from duramen.machines.ages import Ages
from duramen.machines.group import offsets
from duramen.machines.group.classic.state import Group, GroupState
from duramen.machines.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from duramen.machines.group.commands import CommittedOffset
from duramen.machines.group.records import OffsetRecord
from duramen.partition.replica.offset_lookup import delete_records
from duramen.partition.replica.parked_appends import Appended
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.segment.producer_state import ProducerStates
from duramen.wire.batch import BatchHeader

HOUR_MS = 3_600_000


def sent_by(producer: int, sequence: int) -> bytes:
    return bytes(plain(b"%d" % sequence, producer_id=producer, producer_epoch=0, base_sequence=sequence))


def _only_the_last(original: Callable[..., None]) -> Callable[..., None]:
    def update(states: ProducerStates, header: BatchHeader) -> None:
        original(states, header)
        producer = states.get(header.producer_id)
        if producer is not None:
            producer.batches = producer.batches[-1:]

    return update


@exhibit(
    "redpanda-idempotence-without-a-window",
    source="https://github.com/redpanda-data/redpanda/issues/3039",
    guard="the last five batches of each producer are remembered, as many as a client may have in flight",
    without=Replaced(ProducerStates, "update", _only_the_last),
)
def five_in_flight() -> None:
    """A broker that knew only a producer's last batch refused a repeated earlier one; clients wrote it twice."""
    bench = Bench()
    first = [bench.produce(sent_by(7, sequence)) for sequence in range(5)]
    again = [bench.produce(sent_by(7, sequence)) for sequence in range(5)]
    for before, after in zip(first, again, strict=True):
        promise(
            isinstance(before, Appended) and isinstance(after, Appended) and before.base_offset == after.base_offset,
            "a repeated batch is answered with its first place",
        )
    promise(bench.partition.log_end_offset == 5, "and is stored once")


def _checkpoint(bench: Bench) -> None:
    force = True
    while (job := bench.directory.take_checkpoint(force)) is not None:
        job.run()
        bench.directory.complete_checkpoint(job)
        force = False
    bench.run()


def _housekeep(bench: Bench) -> None:
    """Retention, often enough for what it removes to be gone."""
    for _ in range(3):
        bench.clock.now_ms += HOUR_MS
        for job in bench.directory.take_maintenance(bench.clock.now_ms):
            job.run()
            job.complete()
        bench.run()


@exhibit(
    "a-producer-forgotten-with-its-records",
    source="https://issues.apache.org/jira/browse/KAFKA-7190",
    guard="what is known of producers is stored apart before retention or DeleteRecords takes segments that "
    "it could be read from",
    without=Replaced(ProducerSnapshotJob, "run", lambda original: lambda job: None),
)
def forgotten_with_records() -> None:
    """Kafka dropped a producer's state when retention had removed its last record."""
    bench = Bench(file_delete_delay_ms="0")
    answer = bench.produce(sent_by(9, 0))
    assert isinstance(answer, Appended)
    bench.partition.log.roll()
    bench.produce(plain(b"of somebody else"))
    _checkpoint(bench)
    delete_records(bench.partition, 1)
    bench.run()
    _housekeep(bench)
    assert bench.partition.log.segments[0].base_offset == 1, "the producer's only segment is gone"
    bench.produce(sent_by(9, 0))
    promise(bench.partition.log_end_offset == 2, "a retry of a batch whose records were deleted is not stored again")
    _checkpoint(bench)
    cut(bench.disk)
    bench = reopened(bench.disk)
    bench.produce(sent_by(9, 0))
    promise(bench.partition.log_end_offset == 2, "nor is it behind a power cut")


def _none(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(states: ProducerStates, producer: Any) -> None: ...

    return restore


@exhibit(
    "a-producer-forgotten-by-a-restart",
    source="https://github.com/apache/kafka/pull/3306",
    guard="producers are stored with the recovery point and restored at a start",
    without=(Replaced(ProducerStates, "restore", _none),),
)
def forgotten_by_restart() -> None:
    """After a truncation Kafka could be left without a producer snapshot, and then knew no producers."""
    bench = Bench()
    bench.produce(sent_by(9, 0))
    bench.store.close(clean=True)
    cut(bench.disk)
    bench = reopened(bench.disk)
    bench.produce(sent_by(9, 0))
    promise(bench.partition.log_end_offset == 1, "a retry across a restart is recognised")


@exhibit(
    "committed-offsets-of-a-living-group",
    source="https://issues.apache.org/jira/browse/KAFKA-4682",
    guard="offsets of topics that a group's members subscribe to never expire",
    without=Replaced(Group, "is_subscribed", lambda original: lambda group, topic: False),
)
def living_group() -> None:
    """A consumer that had nothing to commit for a day lost its position while it was running."""
    group = Group("readers", NOW)
    group.state = GroupState.STABLE
    group.protocol_type = CONSUMER_PROTOCOL_TYPE
    group.topics = frozenset({"quiet"})
    committed = offsets.OffsetTable()
    committed.apply(OffsetRecord("readers", "quiet", 0, CommittedOffset(41, -1, "", NOW, -1)), 0)
    gone = list(offsets.expired(group, committed, 86_400_000, Ages(), NOW + 10 * 86_400_000))
    promise(gone == [], "a group that reads a topic keeps its position there")
