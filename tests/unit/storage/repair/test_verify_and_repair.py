"""What `duramen log verify` says stays readable is what `duramen log repair` says and leaves."""

from __future__ import annotations

import posixpath
import struct
from collections import Counter
from typing import Any

import pytest
from tests.worlds.repair_world import TP, Harm, Segments, filled, findings, opened, scribble
from tests.worlds.storage_workload import FIRST, append, checkpoint, commit, housekeep, read_all, small, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.report import PartitionReport
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.storage.repair.verify import verify_directory
from duramen.wire.batch import ABORT, build_batch, build_marker, parse_header

Ranges = list[tuple[int, int]]


def verified(disk: CrashDisk) -> PartitionReport:
    (partition,) = verify_directory(disk, "/data", lambda size: None).partitions
    return partition


def rewritten(disk: CrashDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True, write=True)
    file.truncate(0)
    file.pwritev([content], 0)
    file.sync()
    file.close()


def stray_bytes(disk: CrashDisk, segments: Segments) -> None:
    path = segments[1][0]
    rewritten(disk, path, disk.contents()[path] + b"\0")


def cut(disk: CrashDisk, segments: Segments) -> None:
    path = segments[1][0]
    rewritten(disk, path, disk.contents()[path][:700])


def another_logs(disk: CrashDisk, segments: Segments) -> None:
    rewritten(disk, segments[1][0], disk.contents()[segments[2][0]])


def missing_bytes(disk: CrashDisk, segments: Segments) -> None:
    path = segments[-1][0]
    content = disk.contents()[path]
    rewritten(disk, path, content[:100] + content[250:])


def gone(disk: CrashDisk, segments: Segments) -> None:
    disk.remove(segments[2][0])


def flipped_bit(disk: CrashDisk, segments: Segments) -> None:
    disk.damage(segments[1][0], 500)


def two_places(disk: CrashDisk, segments: Segments) -> None:
    scribble(disk, segments[1][0], 100, 50)
    scribble(disk, segments[3][0], 400, 900)


@pytest.mark.parametrize("harm", [stray_bytes, cut, another_logs, missing_bytes, gone, flipped_bit, two_places])
def test_verify_promises_what_repair_says_and_leaves(harm: Harm) -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    harm(disk, segments)
    report = verified(disk)
    assert report.is_damaged
    found = survey_directory(disk, "/data")
    assert report.readable == found.readable[report.name]
    lost = {
        offset
        for action in found.actions
        if action.kind == DROPPED
        for offset in range(action.first_offset, action.last_offset + 1)
    }
    promised = {offset for first, last in report.readable for offset in range(first, last + 1)}
    assert promised == set(records) - lost
    apply_repair(disk, found)
    assert not verified(disk).is_damaged
    directory, log = opened(disk)
    assert read_all(log) == {offset: records[offset] for offset in promised}
    directory.close(clean=True)


def test_bytes_behind_a_segment_take_nothing_from_the_log() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    stray_bytes(disk, segments)
    assert verified(disk).readable == [(0, max(records))]


@pytest.mark.parametrize("clean", [True, False])
def test_the_log_start_is_the_one_that_readers_see(clean: bool) -> None:
    disk = CrashDisk()
    records, _ = filled(disk)
    directory, log = opened(disk)
    log.advance_start(25)
    commit(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    report = verified(disk)
    assert (report.start_offset, report.records) == (25, len(records) - 25)
    assert report.readable == [(25, max(records))]
    directory, log = opened(disk)
    assert log.start_offset == 25
    directory.close(clean=True)


def test_zeros_behind_what_our_stop_left_are_damage() -> None:
    """The start leaves such a partition offline; verify took them for space that was reserved, as Kafka does it."""
    disk = CrashDisk()
    records, segments = filled(disk)
    path = segments[-1][0]
    rewritten(disk, path, disk.contents()[path] + bytes(5000))
    report = verified(disk)
    assert report.is_damaged
    assert report.readable == [(0, max(records))]
    apply_repair(disk, survey_directory(disk, "/data"))
    assert verified(disk).findings == []
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=True)


def test_a_log_that_ends_too_early_between_two_batches_is_damaged_after_a_kill() -> None:
    disk = CrashDisk()
    records, segments = filled(disk, clean=False)
    path, _, base = segments[-1]
    rewritten(disk, path, disk.contents()[path][: parse_header(disk.contents()[path]).size])
    report = verified(disk)
    assert report.is_damaged
    assert report.readable == survey_directory(disk, "/data").readable[report.name] == [(0, base), (60, max(records))]


@pytest.mark.parametrize("clean", [True, False])
def test_the_files_of_the_directory_are_not_read_for_each_partition_anew(clean: bool) -> None:
    """With 2,000 partitions that took a minute; most of it decoding the checkpoint."""

    def calls(partitions: int) -> dict[str, int]:
        disk = CrashDisk()
        directory = start(disk)
        for number in range(partitions):
            log = directory.create_log(TopicPartition("t", number), FIRST, PlainLogConfig())
            log.assign_epoch(0)
            append(log, b"v")
        commit(directory)
        checkpoint(directory)
        directory.close(clean=clean)
        opened: Counter[str] = Counter()
        disk.fault = lambda call: opened.update([call.path] if call.operation == "open" else [])
        verify_directory(disk, "/data", lambda size: None)
        survey_directory(disk, "/data")
        return {path: count for path, count in opened.items() if posixpath.dirname(path) == "/data"}

    assert calls(12) == calls(2)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["flipped", "emptied", "longer"])
def test_an_index_that_is_not_what_was_sealed_is_made_again_behind_a_repair(suffix: str, harm: str) -> None:
    """Readers read around it, and nobody made it again."""
    disk = CrashDisk()
    records, segments = filled(disk)
    path = segments[1][0][: -len(".log")] + suffix
    content = disk.contents()[path]
    flipped = bytes([content[0] ^ 1]) + content[1:]
    rewritten(disk, path, {"flipped": flipped, "emptied": b"", "longer": content + content[-8:]}[harm])
    assert {finding.path for finding in findings(disk)} == {path}
    found = survey_directory(disk, "/data")
    assert [(action.kind, action.path) for action in found.actions] == [("removed", path)]
    apply_repair(disk, found)
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=True)
    assert findings(disk) == []


@pytest.mark.parametrize("rolled_back", [True, False])
@pytest.mark.parametrize("harm", ["flipped", "emptied", "longer", "gone"])
def test_a_list_of_rolled_back_transactions_that_is_not_what_was_sealed_is_made_again(
    rolled_back: bool, harm: str
) -> None:
    """Verify ended with 1 for ever; and where the file was empty, readers of committed records got the others, too."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(30):
        append(log, b"v" * 300)
        if number in (2, 4) and rolled_back:
            of: dict[str, Any] = {"base_offset": log.end_offset, "leader_epoch": 0}
            batch = build_batch(
                [(None, b"x", [], 1000)], producer_id=1, producer_epoch=0, base_sequence=number // 2 - 1,
                transactional=True, **of,
            )  # fmt: skip
            log.append(batch, parse_header(memoryview(batch)), 1000)
            marker = build_marker(1, 0, ABORT, 0, 1000, base_offset=log.end_offset, leader_epoch=0)
            log.append(marker, parse_header(memoryview(marker)), 1000)
        commit(directory)
    checkpoint(directory)
    housekeep(directory)
    told = log.aborted(0, log.end_offset)
    assert len(told) == 2 * rolled_back
    directory.close(clean=True)
    assert findings(disk) == []
    path = "/data/first-0/00000000000000000000.txnindex"
    content = disk.contents().get(path, b"")
    entry = struct.pack(">hqqqq", 0, 9, 1, 2, 1)
    harmed = {
        "flipped": content[:9] + bytes(each ^ 1 for each in content[9:10]) + content[10:],
        "emptied": b"",
        "longer": content + entry,
    }
    if harm == "gone":
        if not rolled_back:
            return
        disk.remove(path)
        disk.sync_directory("/data/first-0")
    else:
        rewritten(disk, path, harmed[harm] if content or harm != "flipped" else entry)
    if findings(disk):
        apply_repair(disk, survey_directory(disk, "/data"))
    else:
        assert (rolled_back, harm) == (False, "emptied")
    directory, log = opened(disk)
    assert log.aborted(0, log.end_offset) == told
    directory.close(clean=True)
    assert findings(disk) == []
    directory, log = opened(disk)
    assert log.aborted(0, log.end_offset) == told


@pytest.mark.parametrize("harm", ["emptied", "gone"])
def test_rolled_back_transactions_are_not_shown_where_nothing_was_repaired(harm: str) -> None:
    """An empty list was believed."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    batch = build_batch(
        [(None, b"x", [], 1000)], base_offset=0, leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    for data in (batch, build_marker(1, 0, ABORT, 0, 1000, base_offset=1, leader_epoch=0)):
        log.append(data, parse_header(memoryview(data)), 1000)
    for _ in range(30):
        append(log, b"v" * 300)
        commit(directory)
    checkpoint(directory)
    housekeep(directory)
    directory.close(clean=True)
    path = "/data/first-0/00000000000000000000.txnindex"
    if harm == "gone":
        disk.remove(path)
        disk.sync_directory("/data/first-0")
    else:
        rewritten(disk, path, b"")
    directory, log = opened(disk)
    assert log.aborted(0, log.end_offset) == [(1, 0)]
