"""What a file lacks although all that is left of it is sound: its end, its middle, or what a kill found synced."""

from __future__ import annotations

import pytest
from tests.worlds.repair_world import TP, filled, findings, opened, scribble
from tests.worlds.storage_workload import (
    FIRST,
    SeededEntropy,
    append,
    checkpoint,
    commit,
    housekeep,
    read_all,
    small,
    start,
)

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import encode_offsets
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.repair.journal_reset import recover_and_stop
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED, RepairAction


def compact(disk: CrashDisk) -> None:
    """By the offset that compaction has reached, gaps in the log are right."""
    replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 60}))


def rewrite(disk: CrashDisk, path: str, content: bytes) -> None:
    file = disk.open(path, write=True)
    file.truncate(0)
    file.pwritev([content], 0)
    file.sync()
    file.close()


def sealed(disk: CrashDisk, sizes: range = range(100, 108), *, rolled: bool = True) -> tuple[str, list[int]]:
    """A log with a segment of eight batches that its index says nothing of, sealed and followed by another if `rolled`.

    Its path, and where each batch begins.
    """
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    places = []
    for size in sizes:
        places.append(log.active.size)
        append(log, b"v" * size)
        commit(directory)
    path = log.active.path
    if rolled:
        log.roll()
        append(log, b"behind")
        commit(directory)
    checkpoint(directory)
    housekeep(directory)
    directory.close(clean=True)
    return path, places


def take_out(disk: CrashDisk, path: str, places: list[int], number: int) -> None:
    """The file is without one batch, and without a trace of it."""
    content = disk.contents()[path]
    end = places[number + 1] if number + 1 < len(places) else len(content)
    rewrite(disk, path, content[: places[number]] + content[end:])


def repaired(disk: CrashDisk) -> list[RepairAction]:
    """What a repair drops, as the command does it; a second one finds nothing."""
    found = survey_directory(disk, "/data")
    assert found.actions
    if found.recovers:
        recover_and_stop(disk, "/data", 0, SeededEntropy())
        found = survey_directory(disk, "/data")
    apply_repair(disk, found)
    assert survey_directory(disk, "/data").actions == []
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    return [action for action in found.actions if action.kind == DROPPED]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 3])
def test_a_compacted_log_whose_sealed_segment_lost_its_end_is_offline_until_that_is_told(
    clean: bool, left: int
) -> None:
    disk = CrashDisk()
    records, segments = filled(disk, clean=clean)
    compact(disk)
    path, size, base = segments[1]
    following = segments[2][2]
    rewrite(disk, path, disk.contents()[path][: left * (size // (following - base))])
    for _ in range(2):  # a start that leaves it offline changes nothing that says how it was
        directory = start(disk)
        assert [str(TP)] == [str(left.tp) for left in directory.offline.values()]
        assert f"its seal speaks of {size} bytes" in str(next(iter(directory.offline.values())).error)
        directory.close(clean=clean)
    (dropped,) = repaired(disk)
    assert (dropped.first_offset, dropped.last_offset) == (base + left, following - 1)
    directory, log = opened(disk)
    lost = set(range(base + left, following))
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    assert append(log, b"on") == max(records) + 1
    directory.close(clean=False)


@pytest.mark.parametrize("left", [0, 2])
def test_a_finished_segment_that_was_not_sealed_yet_is_held_against_what_was_sealed_while_it_grew(left: int) -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(8):
        append(log, b"%d" % number * 100)
        commit(directory)
    checkpoint(directory)
    path, size = log.active.path, log.active.size
    log.roll()
    append(log, b"behind")
    commit(directory)
    directory.close(clean=True)
    compact(disk)
    rewrite(disk, path, disk.contents()[path][: left * (size // 8)])
    directory = start(disk)
    assert len(directory.offline) == 1
    directory.close(clean=True)
    (dropped,) = repaired(disk)
    assert (dropped.first_offset, dropped.last_offset) == (left, 7)
    directory, log = opened(disk)
    assert set(read_all(log)) == {*range(left), 8}
    directory.close(clean=False)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_batch_that_is_gone_from_the_middle_of_a_file_is_a_loss(number: int, rolled: bool) -> None:
    disk = CrashDisk()
    path, places = sealed(disk, rolled=rolled)
    take_out(disk, path, places, number)
    assert any(finding.kind == "damage" for finding in findings(disk))
    (dropped,) = repaired(disk)
    assert (dropped.first_offset, dropped.last_offset) == (number, number)
    directory, log = opened(disk)
    assert set(read_all(log)) == set(range(8 + rolled)) - {number}
    assert append(log, b"on") == 8 + rolled
    directory.close(clean=False)


@pytest.mark.parametrize("number", [0, 4])
def test_of_a_compacted_log_it_is_told_that_something_is_gone(number: int) -> None:
    disk = CrashDisk()
    path, places = sealed(disk)
    compact(disk)
    take_out(disk, path, places, number)
    (dropped,) = repaired(disk)
    assert (dropped.first_offset, dropped.last_offset, dropped.side_file) == (-1, -1, "")
    assert [loss["what"] for loss in read_losses(disk, "/data")] == [dropped.what]
    directory, log = opened(disk)
    assert set(read_all(log)) == set(range(9)) - {number}
    directory.close(clean=False)


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("removed", [False, True])
def test_after_a_kill_what_was_synced_of_the_last_segment_is_missed(left: int, removed: bool) -> None:
    disk = CrashDisk()
    records, segments = filled(disk, clean=False)
    path, size, base = segments[-1]
    synced = max(records) - base  # all but the record behind the checkpoint
    length = size // synced
    rewrite(disk, path, disk.contents()[path][: left * length])
    if removed:
        disk.remove(path)
        left = 0
    assert any(finding.kind == "damage" and finding.offset == base + left for finding in findings(disk))
    first = [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED]
    assert [(action.first_offset, action.last_offset) for action in first] == [(base + left, max(records) - 1)]
    repaired(disk)
    directory, log = opened(disk)
    found = read_all(log)
    assert {offset: value for offset, value in records.items() if not base + left <= offset} == {
        offset: value for offset, value in found.items() if offset < base + left
    }
    assert found.items() <= records.items()
    assert append(log, b"on") == max(records) + 1
    directory.close(clean=False)


def test_a_topic_made_again_under_the_name_of_a_deleted_one_misses_nothing_after_a_kill() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(8):
        append(log, b"%d" % number)
    commit(directory)
    checkpoint(directory)
    directory.delete_log(log)
    commit(directory)
    again = directory.create_log(TP, bytes(15) + b"\x99", small())
    again.assign_epoch(0)
    append(again, b"first")
    commit(directory)
    disk.kill()
    disk.power_on()
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    assert survey_directory(disk, "/data").actions == []


def test_after_a_kill_a_large_batch_that_only_the_segment_had_is_missed() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    append(log, b"small")
    commit(directory)
    checkpoint(directory)
    path, size = log.active.path, log.active.size
    append(log, b"v" * 9000)  # the journal says only that the segment was synced
    commit(directory)
    disk.kill()
    disk.power_on()
    rewrite(disk, path, disk.contents()[path][:size])
    assert [(finding.kind, finding.offset) for finding in findings(disk)] == [("damage", 1)]
    dropped = repaired(disk)
    assert [(action.first_offset, action.last_offset) for action in dropped] == [(1, 1)]
    directory, log = opened(disk)
    assert append(log, b"on") == 2
    directory.close(clean=False)


@pytest.mark.parametrize("harm", ["emptied", "removed", "a sector"])
def test_what_a_power_cut_took_and_the_journal_has_is_neither_damage_nor_a_loss(harm: str) -> None:
    """Segments behind the checkpoint are not synced: any of them may be short, or gone, with later ones there."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    for number in range(50):
        append(log, b"%d " % number + b"v" * 300)
        commit(directory)
        if number == 3:
            checkpoint(directory)
    records = read_all(log)
    taken = log.segments[2]
    assert taken.base_offset > 4
    disk.kill()
    disk.power_on()
    content = disk.contents()[taken.path]
    if harm == "a sector":
        rewrite(disk, taken.path, content[:512] + bytes(512) + content[1024:])
    else:
        rewrite(disk, taken.path, b"")
    if harm == "removed":
        disk.remove(taken.path)
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    assert [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED] == []
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=True)
    assert findings(disk) == []


@pytest.mark.parametrize("harm", ["a bit", "a sector in front, too", "cut", "removed", "rolled, cut", "garbage"])
def test_after_a_kill_what_is_nowhere_but_in_the_segment_is_damage_as_the_start_finds_it(harm: str) -> None:
    """What bypassed the journal was synced with its group. The next start does not replace it: it finds it damaged."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    append(log, b"first")
    commit(directory)
    checkpoint(directory)
    append(log, b"small")
    if harm in ("removed", "garbage"):
        log.roll()
    first, path, place = log.end_offset, log.active.path, log.active.size
    append(log, b"v" * 9000)
    commit(directory)
    if harm in ("rolled, cut", "garbage"):
        log.roll()
    append(log, b"last")
    commit(directory)
    disk.kill()
    disk.power_on()
    content = disk.contents()[path]
    if harm == "removed":
        disk.remove(path)
    elif harm == "garbage":
        rewrite(disk, path, content + b"garbage")
    elif "cut" in harm:
        rewrite(disk, path, content[: place + 4000])
    else:
        disk.damage(path, place + 4000, 1)
        if harm != "a bit":
            disk.damage(path, place - 3, 1)  # of a batch that the journal has
    found = [(finding.kind, finding.offset) for finding in findings(disk) if finding.kind == "damage"]
    assert found == [("damage", 3 if harm == "garbage" else first)]
    dropped = [action.first_offset for action in survey_directory(disk, "/data").actions if action.kind == DROPPED]
    assert dropped, "there is nothing to repair, says the command, and the start says that there is"
    directory = start(disk)
    assert len(directory.offline) == 1
    directory.close(clean=True)
    apply_repair(disk, survey_directory(disk, "/data"))
    directory, log = opened(disk)
    assert append(log, b"on") == 4
    directory.close(clean=False)


@pytest.mark.parametrize("number", [0, 2])
def test_after_a_kill_a_segment_that_is_gone_is_missed_before_the_start_misses_it(number: int) -> None:
    disk = CrashDisk()
    _, segments = filled(disk, clean=False)
    path, _, base = segments[number]
    disk.remove(path)
    assert ("damage", base) in [(finding.kind, finding.offset) for finding in findings(disk)]
    assert base in [action.first_offset for action in survey_directory(disk, "/data").actions]
    directory = start(disk)
    assert len(directory.offline) == 1
    directory.close(clean=False)


def test_a_log_that_is_younger_than_the_checkpoint_is_missed_after_a_kill_too() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    append(log, b"v" * 9000)
    commit(directory)
    disk.kill()
    disk.power_on()
    disk.remove(log.active.path)
    assert [finding.kind for finding in findings(disk) if finding.kind == "damage"] != []
    assert [action.kind for action in survey_directory(disk, "/data").actions] == [DROPPED]
    directory = start(disk)
    assert len(directory.offline) == 1
    directory.close(clean=False)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("harm", ["checkpoint", "name", "both"])
def test_after_a_kill_what_the_journal_has_is_no_loss_where_only_the_journal_knows_the_log(
    harm: str, known: bool
) -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    for number in range(8):
        append(log, b"%d" % number)
        commit(directory)
        if known and number == 3:
            checkpoint(directory)
    path, records = log.active.path, read_all(log)
    disk.kill()
    disk.power_on()
    scribble(disk, path, 30, 50)
    if harm != "name":
        rewrite(disk, "/data/duramen-checkpoint", b"nothing")
    if harm != "checkpoint":
        rewrite(disk, "/data/first-0/partition.metadata", b"nothing")
    dropped = [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED]
    lost = set()
    if dropped or known:
        recover_and_stop(disk, "/data", 0, SeededEntropy())
        found = survey_directory(disk, "/data")
        again = [action for action in found.actions if action.kind == DROPPED]
        assert [action[:6] for action in again] == [action[:6] for action in dropped]
        lost = {n for action in again for n in range(action.first_offset, action.last_offset + 1)}
        apply_repair(disk, found)
    assert bool(lost) == known
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    directory.close(clean=False)


def test_whose_directory_it_is_may_be_known_from_what_is_kept_of_it() -> None:
    disk = CrashDisk()
    filled(disk)
    rewrite(disk, "/data/meta.properties", b"nothing")
    assert survey_directory(disk, "/data").actions == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_that_no_start_takes_for_its_own_is_not_repaired(clean: bool) -> None:
    """Repaired it would still be refused, and nobody knows whose records they are."""
    disk = CrashDisk()
    _, segments = filled(disk, clean=clean)
    scribble(disk, segments[0][0], 30, 50)
    content = disk.contents()["/data/meta.properties"]
    rewrite(disk, "/data/meta.properties", content.replace(b"cluster.id=", b"cluster.id=x"))
    with pytest.raises(StorageError, match="one of them is damaged") as refused:
        start(disk)
    with pytest.raises(StorageError) as told:
        survey_directory(disk, "/data")
    assert str(told.value) == str(refused.value)
    assert ("damage", "/data/meta.properties") in [(finding.kind, finding.path) for finding in findings(disk)]
