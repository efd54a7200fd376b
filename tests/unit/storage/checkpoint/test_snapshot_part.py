"""A snapshot that comes in pieces has its name when it is whole and on the disk, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duramen.errors import CorruptLogError, StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage import SnapshotId, SnapshotPart, WriteSnapshotJob, find_snapshots, read_piece, read_snapshot
from duramen.wire.batch import Record, build_batch
from duramen.wire.records.control import (
    ControlType,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    encode_key,
    encode_value,
)

HERE, THERE = "/follower", "/leader"
ID = SnapshotId(40, 3)


def whole() -> Iterator[bytearray]:
    head, foot = SnapshotHeaderRecord.new(version=0), SnapshotFooterRecord.new(version=0)
    rows = [(encode_key(ControlType.SNAPSHOT_HEADER), encode_value(ControlType.SNAPSHOT_HEADER, head), (), 0)]
    yield build_batch(rows, leader_epoch=3, control=True)
    yield build_batch([(None, b"%d" % number, (), 0) for number in range(50)], base_offset=1, leader_epoch=3)
    rows = [(encode_key(ControlType.SNAPSHOT_FOOTER), encode_value(ControlType.SNAPSHOT_FOOTER, foot), (), 0)]
    yield build_batch(rows, base_offset=51, leader_epoch=3, control=True)


def disks() -> CrashDisk:
    """With a snapshot at the leader's, and a folder for it here."""
    disk = CrashDisk()
    for path in (HERE, THERE):
        disk.make_directories(path)
    disk.sync_directory("/")
    WriteSnapshotJob(disk, THERE, ID, whole).run()
    return disk


def fetch(disk: CrashDisk, length: int = 100) -> list[Record]:
    """Bring it here in pieces; returns its records."""
    part, found = SnapshotPart(disk, HERE, ID), []
    part.begin()()
    size = 1
    while part.size < size:
        size, data = read_piece(disk, THERE, ID, part.size, length)
        part.append(data)()
    part.finish(lambda is_control, record: found.append(record))()
    return found


def test_it_is_the_leader_s_byte_for_byte() -> None:
    disk = disks()
    assert len(fetch(disk)) == 52
    assert find_snapshots(disk, HERE) == [ID]
    assert read_piece(disk, HERE, ID, 0, 1 << 20) == read_piece(disk, THERE, ID, 0, 1 << 20)
    disk.power_cut()
    disk.power_on()
    assert len(list(read_snapshot(disk, HERE, ID))) == 52


def test_one_that_is_damaged_on_its_way_gets_no_name() -> None:
    disk = disks()
    disk.damage(f"{THERE}/{ID.name}", 150)
    with pytest.raises(CorruptLogError):
        fetch(disk)
    assert find_snapshots(disk, HERE) == []


def test_nor_one_that_is_short() -> None:
    disk = disks()
    part = SnapshotPart(disk, HERE, ID)
    part.append(read_piece(disk, THERE, ID, 0, 100)[1])()
    with pytest.raises(StorageError):
        part.finish(lambda is_control, record: None)()
    assert find_snapshots(disk, HERE) == []


def test_what_an_earlier_try_left_is_forgotten() -> None:
    disk = disks()
    SnapshotPart(disk, HERE, ID).append(b"x" * 10_000)()
    assert len(fetch(disk)) == 52


def test_an_error_at_any_call_leaves_none_or_a_whole_one_and_the_next_try_brings_it() -> None:
    disk = disks()
    before = disk.calls
    fetch(disk)
    for number in range(before + 1, disk.calls + 1):
        failing = disks()
        failing.fault = lambda call, number=number: OSError(5, "EIO", call.path) if call.number == number else None
        with pytest.raises(OSError, match="EIO"):
            fetch(failing)
        failing.fault = None
        failing.power_cut()
        failing.power_on()
        for snapshot in find_snapshots(failing, HERE):
            assert len(list(read_snapshot(failing, HERE, snapshot))) == 52
        assert len(fetch(failing)) == 52
