"""An embedded log whose disk is full: topics and records can be deleted, and make room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import duramen
from duramen.embedded.log import EmbeddedLog
from duramen.embedded.records import Record
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.ballast import BALLAST

SETTINGS = {
    "duramen.journal.max.bytes": str(1 << 20),
    "duramen.journal.part.bytes": str(1 << 17),
    "duramen.reserve.bytes": str(1 << 18),
}
HOME = "/nowhere/log"


def within(seconds: float, what: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> CrashDisk:
    disk = CrashDisk()
    monkeypatch.setattr("duramen.embedded.world.RealDisk", lambda: disk)
    return disk


@pytest.fixture
def log(disk: CrashDisk) -> Iterator[EmbeddedLog]:
    """With a topic of some size and another one; nothing more fits, and that is known."""
    with duramen.open(HOME, SETTINGS) as log:
        log.topic("big", configs={"file.delete.delay.ms": "0"}).append([Record(bytes(800_000))])
        small = log.topic("small")
        small.append([Record(b"0")])
        within(60, lambda: disk.exists(f"{HOME}/{BALLAST}"))
        disk.capacity = disk.used
        with pytest.raises(KafkaError):
            small.append([Record(b"1")])
        yield log


def takes_writes(log: EmbeddedLog) -> bool:
    try:
        log.topic("small").append([Record(b"more")])
    except KafkaError as error:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            return False
        raise
    return True


def test_a_topic_can_be_deleted_on_a_full_disk_and_makes_room(log: EmbeddedLog) -> None:
    log.delete_topic("big")
    within(60, lambda: takes_writes(log))
    assert log.topics() == ["small"]


def test_records_can_be_deleted_on_a_full_disk(log: EmbeddedLog, disk: CrashDisk) -> None:
    assert log.topic("big").truncate(0, 1) == 1
    assert not takes_writes(log)
    log.close()
    disk.capacity = 1 << 30
    with duramen.open(HOME, SETTINGS) as again:
        assert again.topic("big").start_offset(0) == 1


def test_a_log_on_a_full_disk_is_closed_cleanly(log: EmbeddedLog, disk: CrashDisk) -> None:
    log.close()
    with duramen.open(HOME, SETTINGS) as again:
        assert again._store.directories[0].clean_start
        assert [record.value for record in again.topic("small").read(0)] == [b"0", b"1"]
        with pytest.raises(DuramenError):
            again.topic("big").append([Record(bytes(800_000))])
