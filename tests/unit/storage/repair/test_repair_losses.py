"""`duramen log repair` over and over: each loss is told whole, and nothing foreign is taken for the log's own."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.worlds.repair_world import TP, Agreeing, Harm, Segments, filled, findings, interrupted, opened, scribble
from tests.worlds.storage_workload import (
    FIRST,
    SECOND,
    SETTINGS,
    SeededEntropy,
    append,
    checkpoint,
    commit,
    housekeep,
    read_all,
    small,
    start,
)

from duramen.errors import DirectoryLockedError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import encode_offsets
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.repair.repair import DirectoryRepair, apply_repair, repair_directory, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED, REPAIRED


def cut_off(disk: CrashDisk, path: str, size: int) -> None:
    """The file ends there."""
    file = disk.open(path, write=True)
    file.truncate(size)
    file.sync()
    file.close()


def repaired(disk: CrashDisk) -> set[int]:
    """Repair once; the offsets that were told lost by all repairs."""
    apply_repair(disk, survey_directory(disk, "/data"))
    assert [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED] == []
    return {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}


def test_what_an_earlier_repair_put_aside_stays_when_the_same_place_is_damaged_again() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, base = segments[1]
    batch = size // (segments[2][2] - base)
    quarantined = []
    for _ in range(3):
        scribble(disk, path, 30, 50)
        quarantined.append(disk.contents()[path][:batch])
        repaired(disk)
    told = read_losses(disk, "/data")
    assert [loss["last_offset"] for loss in told] == [base + n for n in range(3)]
    assert [disk.contents()[loss["side_file"]] for loss in told] == quarantined
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if not base <= offset < base + 3}
    directory.close(clean=True)


def test_a_missing_segment_is_listed_once_by_a_repair_that_was_cut_short_anywhere() -> None:
    """First as a gap between two segments, then, behind that loss, as one that the directory's own list has."""

    def removed(disk: CrashDisk, segments: Segments) -> None:
        for name in list(disk.contents()):
            if name.startswith(segments[1][0].removesuffix("log")):
                disk.remove(name)
        disk.sync_directory("/data/first-0")

    for _, disk, *_ in interrupted(removed):
        assert repaired(disk) == set(range(10, 20))
        assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == [(10, 19)]
        assert findings(disk) == []


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("also", [False, True])
def test_a_sealed_segment_whose_end_is_missing_is_a_loss_that_one_repair_tells(compacted: bool, also: bool) -> None:
    """Between two batches, so that what is left looks whole; where compaction was, gaps between segments are right."""
    disk = CrashDisk()
    records, segments = filled(disk)
    if compacted:
        replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 60}))
    path, size, base = segments[1]
    following = segments[2][2]
    batch = size // (following - base)
    cut_off(disk, path, size - 2 * batch)
    lost = {following - 2, following - 1}
    if also:
        scribble(disk, path, batch + 30, 50)
        lost.add(base + 1)
    assert repaired(disk) == lost
    assert findings(disk) == []
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    assert log.end_offset == max(records) + 1
    directory.close(clean=True)


def test_a_damaged_batch_and_a_missing_end_of_the_last_segment_are_told_by_one_repair() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, base = segments[-1]
    end = max(records) + 1
    batch = size // (end - base)
    cut_off(disk, path, size - batch)
    scribble(disk, path, 30, 50)
    assert repaired(disk) == {base, end - 1}
    directory, log = opened(disk)
    assert set(read_all(log)) == set(records) - {base, end - 1}
    assert append(log, b"on") == end
    directory.close(clean=True)


def two_logs(disk: CrashDisk) -> list[dict[int, bytes]]:
    """Two logs of several segments at rest; their records."""
    directory = start(disk)
    found = []
    for name, topic_id, size in (("first", FIRST, 300), ("second", SECOND, 280)):
        log = directory.create_log(TopicPartition(name, 0), topic_id, small())
        log.assign_epoch(0)
        for number in range(40):
            append(log, f"{name} {number} ".encode().ljust(size, b"v"))
            commit(directory)
        checkpoint(directory)
        housekeep(directory)
        found.append(read_all(log))
        assert len(log.segments) >= 3
    directory.close(clean=True)
    return found


@pytest.mark.parametrize("second", [0, 1, 2])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_repair_keeps_nothing_of_a_segment_that_is_another_logs(first: int, second: int) -> None:
    """As a file system that mixes up two names would leave it. Each batch of it is whole, for it is a batch."""
    disk = CrashDisk()
    mine, others = two_logs(disk)
    files = disk.contents()
    paths = [
        sorted(path for path in files if path.startswith(f"/data/{name}-0/") and path.endswith(".log"))[number]
        for name, number in (("first", first), ("second", second))
    ]
    for path, other in (paths, reversed(paths)):
        replace_file(disk, path, files[other])
    repaired(disk)
    assert findings(disk) == []
    directory = start(disk)
    logs = sorted(directory.logs.values(), key=lambda log: log.tp.topic)
    for log, records in zip(logs, (mine, others), strict=True):
        found = read_all(log)
        assert {offset: value for offset, value in records.items() if offset in found} == found
        told = {
            n
            for loss in read_losses(disk, "/data")
            if loss["partition"] == str(log.tp)
            for n in range(loss["first_offset"], loss["last_offset"] + 1)
        }
        assert set(records) - set(found) <= told
        assert log.end_offset == max(records) + 1
    directory.close(clean=True)


def test_nobody_uses_the_directory_while_a_repair_asks(tmp_path: Path) -> None:
    """What was surveyed would not be so any more: records appended since would be cut off."""
    disk, path = RealDisk(), str(tmp_path)
    directory = LogDirectory.open(disk, path, SETTINGS, now_ms=1_000_000, entropy=SeededEntropy())
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(8):
        append(log, b"%d " % number + b"v" * 300)
        commit(directory)
    segment = Path(log.active.path)
    directory.close(clean=True)
    content = bytearray(segment.read_bytes())
    content[100:110] = b"damaged..."
    segment.write_bytes(content)
    refused = []

    class Asking(Agreeing):
        def approve(self, found: DirectoryRepair) -> None:
            try:
                LogDirectory.open(disk, path, SETTINGS, now_ms=1_000_000, entropy=SeededEntropy()).close(clean=True)
            except DirectoryLockedError:
                refused.append(found)

    found = repair_directory(disk, path, SeededEntropy(), Asking())
    assert any(action.kind == DROPPED for action in found.actions)
    assert len(refused) == 1


def short_and_damaged(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[1]
    cut_off(disk, path, size - 300)
    scribble(disk, path, 30, 50)


def other_segments(disk: CrashDisk, segments: Segments) -> None:
    first, second = segments[0][0], segments[1][0]
    files = disk.contents()
    replace_file(disk, first, files[second])
    replace_file(disk, second, files[first])


def longer(disk: CrashDisk, segments: Segments) -> None:
    files = disk.contents()
    replace_file(disk, segments[1][0], files[segments[1][0]] + files[segments[2][0]])
    scribble(disk, segments[-1][0], 30, 50)


def all_gone(disk: CrashDisk, segments: Segments) -> None:
    for path, _, _ in segments:
        disk.remove(path)
    disk.sync_directory("/data/first-0")


@pytest.mark.parametrize("harm", [short_and_damaged, other_segments, longer, all_gone])
def test_a_repair_cut_short_in_any_call_is_finished_by_the_next(harm: Harm) -> None:
    """The old seal may still lie beside the new segment then."""

    def harm_compacted(disk: CrashDisk, segments: Segments) -> None:
        replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 60}))
        harm(disk, segments)

    for cut in interrupted(harm_compacted):
        disk, records, lost = cut.disk, cut.records, cut.lost
        assert repaired(disk) == lost
        assert survey_directory(disk, "/data").actions == []
        files = disk.contents()
        assert [name for name in files if name.endswith(REPAIRED)] == []
        for action in cut.dropped:
            if action.side_file:
                assert files[action.side_file] == cut.damaged[action.path][action.start : action.end]
        assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
        directory, log = opened(disk)
        assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}, cut.call
        assert append(log, b"on") == max(records) + 1
        directory.close(clean=False)
    assert cut.call > 20


@pytest.mark.parametrize("started", [False, True])
def test_a_log_whose_only_segment_is_gone_goes_on_behind_what_it_had(started: bool) -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(8):
        append(log, b"%d" % number)
        commit(directory)
    path = log.active.path
    directory.close(clean=True)
    disk.remove(path)
    if started:
        directory = start(disk)
        assert directory.logs == {}
        directory.close(clean=True)
    assert repaired(disk) == set(range(8))
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    directory, log = opened(disk)
    assert append(log, b"on") == 8
    assert read_all(log) == {8: b"on"}
    directory.close(clean=False)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_segment_that_grew_while_nobody_served_it_is_anothers(longer: int) -> None:
    """After a clean stop every byte of the last segment is known of, and its offsets would be used twice."""
    disk = CrashDisk()
    logs = two_logs(disk)
    files = disk.contents()
    last = [
        max(path for path in files if path.startswith(f"/data/{name}-0/") and path.endswith(".log"))
        for name in ("first", "second")
    ]
    short, long = sorted(last, key=lambda path: len(files[path]))
    replace_file(disk, (short, long)[longer], files[(long, short)[longer]])
    for _ in range(2):
        directory = start(disk)
        assert [left.tp.topic for left in directory.offline.values()] == [(short, long)[longer].split("/")[2][:-2]]
        directory.close(clean=True)
    repaired(disk)
    directory = start(disk)
    for log in directory.logs.values():
        records = logs[log.topic_id == SECOND]
        found = read_all(log)
        assert {offset: value for offset, value in records.items() if offset in found} == found
        assert log.end_offset == max(records) + 1
    assert len(directory.logs) == 2
    directory.close(clean=False)


def test_of_a_missing_last_segment_all_offsets_are_told() -> None:
    """By the end of the last clean stop; it was the first one only."""
    disk = CrashDisk()
    records, segments = filled(disk)
    path, _, base = segments[-1]
    disk.remove(path)
    (damage,) = (finding for finding in findings(disk) if finding.kind == "damage")
    assert (damage.offset, damage.last_offset) == (base, max(records))
    directory = start(disk.copy(Random(1)))
    (left,) = directory.offline.values()
    assert f"held offsets up to {max(records)}" in str(left.error)
    directory.close(clean=False)
    assert repaired(disk) == set(range(base, max(records) + 1))
