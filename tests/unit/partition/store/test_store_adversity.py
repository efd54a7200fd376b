"""What a store owes its callers when the disk, the journal or a deletion comes at the worst moment."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.worlds.partition_world import NOW, TOPIC_ID, TP, Bench, NoTimer

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.replica.parked_appends import Appended
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.wire.batch import build_batch

MINUTE = 60_000


def batch(value: bytes = b"v", timestamp: int = NOW) -> bytearray:
    return build_batch([(None, value, [], timestamp)])


def values_on(disk: CrashDisk, path: str) -> bytes:
    return disk.contents()[path]


def refuse(*operations: str, code: int = errno.EIO, within: str = "") -> object:
    def fault(call: DiskCall) -> OSError | None:
        return OSError(code, "refused", call.path) if call.operation in operations and within in call.path else None

    return fault


def maintain(bench: Bench) -> int:
    """One turn of maintenance, as its timer would make it; how many later turns it asked for."""
    asked: list[float] = []
    later = bench.clock.call_later
    bench.clock.call_later = lambda seconds, callback: (asked.append(seconds), later(seconds, callback))[1]  # type: ignore[method-assign]
    bench.store.maintenance._maintain()
    bench.clock.call_later = later  # type: ignore[method-assign]
    return len(asked)


def test_a_disk_that_fails_in_maintenance_is_told_to_those_who_wait_and_maintenance_goes_on() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    waiting = bench.send(batch())
    bench.run()
    queued = bench.send(batch())  # in the queue of its log: the checkpoint is the first to write it
    bench.directory._last_checkpoint_ms = -10 * MINUTE
    bench.disk.fault = refuse("pwritev", within=".log")  # type: ignore[assignment]
    assert maintain(bench) == 1
    bench.run()
    assert bench.failures
    assert [type(answer) for answer in waiting + queued] == [KafkaError, KafkaError]


def test_a_directory_that_fails_in_housekeeping_answers_its_producers() -> None:
    bench = Bench(segment_bytes="1048576")
    for _ in range(2):
        assert isinstance(bench.produce(batch(b"x" * 600_000)), Appended)
    complete_sync(bench.partition.log, _run(bench))
    bench.lanes.held.add("journal")
    waiting = bench.send(batch())
    bench.disk.fault = refuse("rename", within=".seal")  # type: ignore[assignment]
    maintain(bench)
    bench.run()
    assert bench.directory.journal.failed is not None
    assert [type(answer) for answer in waiting] == [KafkaError]
    assert bench.failures


def _run(bench: Bench):  # type: ignore[no-untyped-def]
    job = take_sync(bench.partition.log)
    assert job is not None
    job.run()
    return job


def test_a_topic_that_cannot_be_created_answers_the_producers_of_its_directory() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    waiting = bench.send(batch())
    bench.run()
    bench.disk.fault = refuse("sync_directory", within="other-0")  # type: ignore[assignment]
    with pytest.raises(StorageError, match="cannot be created"):
        bench.store.open_partition(TP._replace(topic="other"), b"o" * 16, bench.config())
    bench.run()
    assert [type(answer) for answer in waiting] == [KafkaError]
    assert bench.failures


def test_a_full_journal_does_not_end_maintenance() -> None:
    bench = Bench(segment_bytes="1048576", retention_ms="1000")
    for _ in range(2):
        bench.produce(batch(b"x" * 600_000))
    bench.clock.now_ms += 10 * MINUTE
    full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the journal is full")

    def admit(size: int) -> None:
        raise full

    bench.directory.journal.admit = admit  # type: ignore[method-assign]
    assert maintain(bench) == 1
    bench.clock.now_ms += MINUTE  # now retention is looked at, too
    assert maintain(bench) == 1


def test_a_deleted_topics_jobs_never_touch_the_topic_that_has_its_name_now() -> None:
    bench = Bench(segment_bytes="1048576", retention_ms="1000")
    for _ in range(3):
        assert isinstance(bench.produce(batch(b"x" * 600_000)), Appended)
    job = bench.directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    bench.directory.complete_checkpoint(job)
    bench.clock.now_ms += 10 * MINUTE
    bench.lanes.held.add("housekeeping")
    bench.lanes.held.add("checkpoint")
    for _ in range(3):
        maintain(bench)
        bench.clock.now_ms += MINUTE  # the first look at retention comes a while after the start
        bench.run()  # the log start is durable, the renames of the old segments wait in their lane
    assert any(lane == "housekeeping" for lane, _, _ in bench.lanes.waiting)
    job = bench.directory.take_checkpoint(force=True)
    bench.store.delete_partition(TP)
    bench.run()
    bench.partition = bench.store.open_partition(TP, b"n" * 16, bench.config())
    bench.partition.lead(1, (1,), (1,), 0)
    assert isinstance(bench.produce(batch(b"kept")), Appended)
    before = {path: data for path, data in bench.disk.contents().items() if path.startswith("/data/t-0/")}
    if job is not None:
        job.run()
    bench.lanes.held.clear()
    bench.run()
    after = {path: data for path, data in bench.disk.contents().items() if path.startswith("/data/t-0/")}
    assert after == before


def test_a_topic_that_stops_being_stable_acknowledges_nothing_a_killed_process_loses() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    first = bench.send(batch(b"first"))
    bench.run()
    second = bench.send(batch(b"second"))
    bench.run()
    assert (first, second) == ([], [])
    bench.store.configure(bench.partition, bench.config(duramen_ack_durability="page-cache"))
    bench.run()
    acknowledged = len([answer for answer in first + second if isinstance(answer, Appended)])
    bench.disk.kill()
    bench.disk.power_on()
    again = Bench(bench.disk, epoch=2, duramen_ack_durability="page-cache")
    assert again.partition.log_end_offset >= acknowledged


def test_a_roll_that_fails_half_way_leaves_a_log_that_takes_smaller_batches() -> None:
    bench = Bench(segment_bytes="1048576")
    assert isinstance(bench.produce(batch(b"x" * 600_000)), Appended)
    bench.disk.fault = refuse("open", within="00000000000000000001.log", code=errno.EMFILE)  # type: ignore[assignment]
    assert isinstance(bench.produce(batch(b"x" * 600_000)), KafkaError)
    answer = bench.produce(batch(b"small"))
    assert isinstance(answer, Appended)
    assert answer.base_offset == 1
    assert bench.partition.topic_id == TOPIC_ID


def test_a_deletion_without_delay_leaves_a_directory_that_starts() -> None:
    bench = Bench(file_delete_delay_ms="0")
    assert isinstance(bench.produce(batch()), Appended)
    bench.lanes.held.add("journal")
    bench.store.delete_partition(TP)
    bench.run()
    for _ in range(3):
        bench.clock.now_ms += MINUTE
        maintain(bench)
        bench.run()
    bench.disk.power_cut()
    bench.disk.power_on()
    again = Bench(bench.disk, epoch=2)
    assert again.partition.log_end_offset in (0, 1)


def test_a_topic_whose_directory_failed_can_be_deleted_without_harm_to_others() -> None:
    bench = Bench()
    reports: list[str] = []
    publisher = MetadataPublisher(
        bench.world, bench.store, bench.broker_config, 1, lambda event, **fields: reports.append(event)
    )
    bench.directory.journal.fail(None, OSError(errno.EIO, "gone"))
    publisher._remove("t", TOPIC_ID)
    assert reports == ["partition-not-deleted"]
    assert TP not in bench.store.partitions


class Timers:
    """Delayed calls that come when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, callback: Callable[[], None]) -> NoTimer:
        self.calls.append((seconds, callback))
        return NoTimer()


@pytest.mark.parametrize(("messages", "left"), [("3", 3), ("1", 4), (str(2**63 - 1), 0)])
def test_flush_messages_bounds_what_a_power_cut_takes_from_a_page_cache_topic(messages: str, left: int) -> None:
    bench = Bench(duramen_ack_durability="page-cache", flush_messages=messages)
    for _ in range(4):
        assert isinstance(bench.produce(batch()), Appended)
    bench.disk.power_cut()
    bench.disk.power_on()
    assert Bench(bench.disk, epoch=2, duramen_ack_durability="page-cache").partition.log_end_offset == left


def test_flush_ms_syncs_what_was_appended_until_then() -> None:
    timers = Timers()
    bench = Bench(duramen_ack_durability="page-cache", flush_ms="1500")
    bench.clock.call_later = timers.later  # type: ignore[method-assign]
    for _ in range(2):
        assert isinstance(bench.produce(batch()), Appended)
    assert [seconds for seconds, _ in timers.calls] == [1.5], "from the first unsynced record on"
    timers.calls.pop()[1]()
    bench.run()
    assert isinstance(bench.produce(batch()), Appended)
    assert len(timers.calls) == 1
    bench.disk.power_cut()
    bench.disk.power_on()
    assert Bench(bench.disk, epoch=2, duramen_ack_durability="page-cache").partition.log_end_offset == 2


def test_flush_settings_add_nothing_to_a_stable_topic() -> None:
    bench = Bench(flush_messages="1", flush_ms="1")
    bench.produce(batch())
    bench.disk.record = []
    assert isinstance(bench.produce(batch()), Appended)
    syncs = [call.path for call in bench.disk.record if call.operation == "sync"]
    assert syncs
    assert all("journal" in path for path in syncs)


def test_a_failed_extra_sync_fences_the_directory_and_a_deleted_topic_is_no_failure() -> None:
    bench = Bench(duramen_ack_durability="page-cache", flush_messages="1")
    bench.lanes.held.add("checkpoint")
    assert isinstance(bench.produce(batch()), Appended)
    bench.store.delete_partition(TP)
    bench.lanes.held.clear()
    bench.run()
    assert not bench.failures
    bench = Bench(duramen_ack_durability="page-cache", flush_messages="1")
    bench.disk.fault = refuse("sync", within=".log")  # type: ignore[assignment]
    bench.produce(batch())
    assert bench.failures


def test_a_leased_segment_survives_retention_end_to_end() -> None:
    bench = Bench(segment_bytes="1048576", retention_ms="1000", file_delete_delay_ms="0")
    for _ in range(4):
        assert isinstance(bench.produce(batch(b"x" * 600_000)), Appended)
    lease = bench.partition.log.lease(1, NOW + 60 * MINUTE)

    def retain() -> list[str]:
        for _ in range(6):
            bench.clock.now_ms += 6 * MINUTE
            maintain(bench)
            bench.run()
        return sorted(path[-24:] for path in bench.disk.contents() if path.endswith((".log", ".log.deleted")))

    bench.clock.now_ms += 2 * MINUTE
    names = retain()
    assert names[0] == "00000000000000000001.log", "what the lease does not cover went"
    assert "00000000000000000002.log" in names
    assert bench.partition.log_start_offset == 1
    lease.release()
    assert not {"00000000000000000001.log", "00000000000000000002.log"} & set(retain())
