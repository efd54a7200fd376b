"""Brokers whose metadata log lost something, and what repairs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.cli.log import repair as repair_command
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.sim.world.disk import CrashDisk
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.storage.repair.verify import verify_directory
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

LOG_HOME = "/data/__cluster_metadata-0"


def stopped(server: InProcess) -> CrashDisk:
    done: list[bool] = []
    server.broker.stop(lambda: done.append(True))
    while not done:
        server.run()
        server.pass_ms(100)
    return server.disk


def without(disk: CrashDisk, is_lost: Callable[[str, Any], bool], directory: str = "/data") -> int:
    """Damage each batch of the metadata log with such a record, and repair; how many there were."""
    path = f"{directory}/__cluster_metadata-0/00000000000000000000.log"
    data = disk.contents()[path]
    found = 0
    for position, header in batches(memoryview(data)):
        if header.is_control:
            continue
        view = memoryview(data)[position : position + header.size]
        if any(is_lost(*codec.decode(LogRecord(r.key, r.value))) for r in records(view, header, max_bytes=1 << 20)):
            found += 1
            for at in range(position + 20, position + header.size):
                disk.damage(path, at, 0x5A)
    repair = survey_directory(disk, directory)
    assert [action.kind for action in repair.actions if action.kind == DROPPED]
    apply_repair(disk, repair)
    return found


def delete(line: Line, name: str) -> None:
    request = API[20].request
    assert line.call(20, 6, topics=[request.DeleteTopicState(name=name)], timeout_ms=1000).responses[0].error_code == 0


def producer_id(line: Line) -> int:
    answer = line.call(22, 4, transactional_id=None, transaction_timeout_ms=1000)
    assert answer.error_code == 0
    return int(answer.producer_id)


def append(server: InProcess, producer: int, value: bytes) -> tuple[int, int]:
    """(error code, offset) of a producer's first record."""
    batch = build_batch([(b"k", value, (), NOW)], producer_id=producer, producer_epoch=0, base_sequence=0)
    return put_batch(server.connect(), 0, batch)


def put(line: Line, partition: int, *values: bytes) -> tuple[int, int]:
    """(error code, offset) of records of topic t."""
    return put_batch(line, partition, build_batch([(b"k", value, (), NOW) for value in values]))


def put_batch(line: Line, partition: int, batch: bytearray) -> tuple[int, int]:
    request = API[0].request
    data = [request.PartitionProduceData(index=partition, records=bytes(batch))]
    topic = request.TopicProduceData(name="t", partition_data=data)
    answer = line.call(0, 9, acks=-1, timeout_ms=1000, topic_data=[topic])
    found = answer.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def add_partitions(line: Line, name: str, count: int) -> None:
    request = API[37].request
    more = request.CreatePartitionsTopic(name=name, count=count, assignments=None)
    assert line.call(37, 3, topics=[more], timeout_ms=1000, validate_only=False).results[0].error_code == 0


def gone(disk: CrashDisk, what: str, directory: str = "/data") -> None:
    """The metadata log's segments, all its files, or its directory."""
    home = f"{directory}/__cluster_metadata-0"
    for name in disk.list_directory(home):
        if what != "segments" or name.endswith(".log"):
            disk.remove(f"{home}/{name}")
    disk.sync_directory(home)
    if what == "directory":
        disk.remove(home)
        disk.sync_directory(directory)


def repaired(disk: CrashDisk, directory: str = "/data") -> int:
    with patch.object(repair_command, "RealDisk", lambda: disk):
        return int(repair_command.command.callback(directory, None, None, False, False, True, True))  # type: ignore[misc]


def told(disk: CrashDisk) -> list[str]:
    """Kinds of what `duramen log verify` says."""
    return [finding.kind for finding in verify_directory(disk, "/data", lambda size: None).all_findings()]


def lose_snapshots(disk: CrashDisk) -> None:
    for name in disk.list_directory(LOG_HOME):
        if name.endswith(".checkpoint"):
            disk.remove(f"{LOG_HOME}/{name}")
    disk.sync_directory(LOG_HOME)
