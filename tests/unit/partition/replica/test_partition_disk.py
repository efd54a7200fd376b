"""One partition on a disk that is full or fails: refused writes, answered readers, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import NOW, Bench, plain

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.partition.replica.offset_lookup import delete_records
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import DirectorySettings


def code(answer: Appended | KafkaError) -> ErrorCode:
    return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE


def appended(answer: Appended | KafkaError) -> Appended:
    assert isinstance(answer, Appended), answer
    return answer


def test_a_failed_sync_refuses_writes_and_goes_on_reading() -> None:
    disk = CrashDisk()
    bench = Bench(disk)
    bench.produce(plain(b"kept"))
    disk.fault = lambda call: OSError(5, "Input/output error") if call.operation == "sync" else None
    answer = bench.produce(plain(b"lost"))
    assert code(answer) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(bench.failures) == 1
    disk.fault = None
    for _ in range(3):
        assert code(bench.produce(plain(b"refused"), acks=1)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(bench.produce(plain(b"refused"), acks=0)) is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as caught:
        delete_records(bench.partition, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.values() == [b"kept"]
    assert bench.partition.high_watermark == 1
    disk.power_cut()
    disk.power_on()
    assert Bench(disk, epoch=2).values()[0] == b"kept"


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_a_failed_write_refuses_and_loses_nothing_that_was_acknowledged(durability: str) -> None:
    disk = CrashDisk()
    bench = Bench(disk, duramen_ack_durability=durability)
    bench.produce(plain(b"kept"))
    disk.fault = lambda call: OSError(28, "No space left on device") if call.operation == "pwritev" else None
    assert code(bench.produce(plain(b"lost"))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.fault = None
    assert code(bench.produce(plain(b"refused"))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.values() == [b"kept"]


def test_a_full_disk_refuses_writes_and_serves_everything_acknowledged() -> None:
    disk = CrashDisk(capacity=8 << 20)
    bench = Bench(disk, segment_bytes="1048576")
    stored = []
    for number in range(200):
        value = b"%06d" % number * 10_000
        answer = bench.produce(plain(value))
        if isinstance(answer, KafkaError):
            assert answer.code is ErrorCode.KAFKA_STORAGE_ERROR
            break
        stored.append(value)
    else:
        pytest.fail("eight megabytes held twelve")
    assert len(stored) > 10
    assert code(bench.produce(plain(b"x" * 60_000))) is ErrorCode.KAFKA_STORAGE_ERROR
    read: list[bytes | None] = []
    while len(read) < len(stored):
        read += bench.values(len(read))
    assert read == stored
    disk.capacity = 1 << 30
    disk.kill()
    disk.power_on()
    again = Bench(disk, epoch=2)
    assert again.partition.log_end_offset >= len(stored)
    assert again.values(0)[0] == stored[0]
    assert code(again.produce(plain(b"goes on"))) is ErrorCode.NONE


def test_a_failed_directory_leaves_the_other_alone() -> None:
    disk = CrashDisk()
    bench = Bench(disk)
    bench.store.open_directory("/other", DirectorySettings())
    tp = TopicPartition("u", 0)
    second: Partition = bench.store.open_partition(tp, b"u" * 16, bench.config())
    second.lead(1, (1,), (1,), 0)
    bench.run()
    assert bench.store.home(tp).path == "/other"
    disk.fault = lambda call: OSError(5, "EIO") if call.operation == "sync" and call.path.startswith("/data") else None
    answers: list[Any] = []
    synced: list[Any] = []
    bench.lanes.held.add("journal")
    second.append(memoryview(plain(b"fine")), -1, NOW, answers.append)
    bench.store.when_synced(tp, synced.append)
    first = bench.send(plain(b"fails"))
    bench.run()
    # The failing directory's group ends first.
    bench.lanes.held.clear()
    bench.lanes.waiting.sort(key=lambda entry: "/data" not in entry[0])
    bench.run()
    assert code(first[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [code(answer) for answer in answers] == [ErrorCode.NONE]
    assert synced == [None]


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("open", ".log"), ("open", ".index"), ("open", ".snapshot"), ("pwritev", ".timeindex"), ("truncate", ".snapshot")],
)
def test_a_roll_that_finds_no_room_is_tried_again(operation: str, suffix: str) -> None:
    disk = CrashDisk()
    bench = Bench(disk, internal_segment_bytes="5000")
    for _ in range(4):
        bench.produce(plain(b"x" * 1000))
    disk.fault = lambda call: (
        OSError(28, "No space left on device") if call.operation == operation and call.path.endswith(suffix) else None
    )
    for _ in range(3):
        assert code(bench.produce(plain(b"y" * 1000))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.fault = None
    for number in range(3):
        assert appended(bench.produce(plain(b"z" * 1000))).base_offset == 4 + number
    assert [value and value[:1] for value in bench.values()] == [b"x"] * 4 + [b"z"] * 3
    disk.power_cut()
    disk.power_on()
    assert Bench(disk, epoch=2).partition.log_end_offset == 7
