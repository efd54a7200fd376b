"""What `duramen log repair` believes of batches in blocks that are not what was sealed: whose are they, and where?"""

from __future__ import annotations

import pytest
from tests.worlds.repair_world import TP, findings, opened, repair, scribble
from tests.worlds.storage_workload import FIRST, SECOND, append, checkpoint, commit, housekeep, read_all, small, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import encode_offsets
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.wire.batch import batches, build_batch, parse_header
from duramen.wire.seal import BLOCK_BYTES

OTHER = TopicPartition("second", 0)


def put(log: Log, count: int, size: int, timestamp: int | None) -> None:
    """Batches of one record of `size` bytes, one millisecond after the other, or without a timestamp."""
    for number in range(count):
        new = (b"k", b"%d" % number * size, [], -1 if timestamp is None else timestamp + number)
        data = build_batch([new], base_offset=log.end_offset, leader_epoch=log.epochs.latest)
        log.append(data, parse_header(data), 1_000)


def settled(directory: LogDirectory) -> None:
    commit(directory)
    checkpoint(directory)
    housekeep(directory)


def stopped(directory: LogDirectory, log: Log, *, rolled: bool) -> dict[int, bytes]:
    """Stop cleanly; what the log holds. rolled: a batch of its own segment comes behind the others before that."""
    if rolled:
        log.roll()
        put(log, 1, 1, 3_000)
    settled(directory)
    records = read_all(log)
    directory.close(clean=True)
    return records


def repaired(disk: CrashDisk) -> set[int]:
    """Repair once; the offsets of the first log that were told lost."""
    apply_repair(disk, survey_directory(disk, "/data"))
    assert survey_directory(disk, "/data").actions == []
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    told = [loss for loss in read_losses(disk, "/data") if loss["partition"] == str(TP)]
    return {n for loss in told for n in range(loss["first_offset"], loss["last_offset"] + 1)}


def cut_out(disk: CrashDisk, path: str, place: float, gone: int) -> tuple[bytes, set[int]]:
    """Take bytes out of the middle of a file; what it was, and the offsets of the batches that had some of them."""
    content = disk.contents()[path]
    at = int(len(content) * place)
    replace_file(disk, path, content[:at] + content[at + gone :])
    touched = (
        header.base_offset for start, header in batches(content) if start < at + gone and start + header.size > at
    )
    return content, set(touched)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("of_other", [3, 12, 40])
@pytest.mark.parametrize("timed", [True, False])
def test_a_short_file_of_another_log_that_begins_at_the_same_offset_is_not_taken_for_its_beginning(
    indexed: bool, rolled: bool, of_other: int, timed: bool
) -> None:
    disk = CrashDisk()
    directory = start(disk)
    mine = directory.create_log(TP, FIRST, PlainLogConfig())
    other = directory.create_log(OTHER, SECOND, PlainLogConfig())
    for log in (mine, other):
        log.assign_epoch(0)
    put(mine, 40, 200 if indexed else 2, 1_000 if timed else None)
    put(other, of_other, 1, 500 if timed else None)
    path, foreign = mine.active.path, other.active.path
    records = stopped(directory, mine, rolled=rolled)
    replace_file(disk, path, disk.contents()[foreign])
    assert repaired(disk) == set(range(40))
    directory = start(disk)
    log = next(log for log in directory.logs.values() if log.tp == TP)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset >= 40}
    assert log.end_offset == 40 + rolled
    directory.close(clean=False)


@pytest.mark.parametrize("lost", [0, 3, 7])
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("size", [1, 400])
def test_of_a_small_segment_only_the_damaged_batch_goes(lost: int, rolled: bool, size: int) -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    put(log, 8, size, 1_000)
    path, batch = log.active.path, log.active.size // 8
    records = stopped(directory, log, rolled=rolled)
    scribble(disk, path, batch * lost + 30, 30)
    gone = repaired(disk)
    if rolled and lost == 7:  # the youngest batch is what its seal knows it by
        assert lost in gone
    else:
        assert gone == {lost}
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in gone}
    directory.close(clean=False)


def gappy(disk: CrashDisk, *, compacted: bool = True) -> tuple[str, dict[int, bytes]]:
    """A sealed segment of several blocks, every second batch of which compaction took; its path, and its records."""
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    for number in range(900):
        data = build_batch(
            [(b"k", b"%d " % number + b"v" * 150, [], 1_000 + number)],
            base_offset=2 * number,
            leader_epoch=number // 300,
        )
        log.append(data, parse_header(data), 1_000)
    path = log.active.path
    log.roll()
    append(log, b"behind")
    settled(directory)
    records = read_all(log)
    assert len(records) == 901
    directory.close(clean=True)
    if compacted:
        replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 1_799}))
    return path, records


def placed(disk: CrashDisk, path: str) -> list[tuple[int, int, int]]:
    """Start, end and offset of each batch."""
    return [(at, at + header.size, header.base_offset) for at, header in batches(memoryview(disk.contents()[path]))]


def dropped(disk: CrashDisk) -> set[tuple[int, int]]:
    return {(action.start, action.end) for action in survey_directory(disk, "/data").actions if action.kind == DROPPED}


def lacks(disk: CrashDisk, records: dict[int, bytes]) -> list[int]:
    """Which offsets are gone behind a repair; everything else is as it was."""
    repaired(disk)
    directory, log = opened(disk)
    found = read_all(log)
    assert found.items() <= records.items()
    directory.close(clean=False)
    return sorted(records.keys() - found.keys())


@pytest.mark.parametrize("at", [512, BLOCK_BYTES + 30_208, 2 * BLOCK_BYTES - 256])
def test_between_the_gaps_of_compaction_damage_takes_what_it_touches_and_what_begins_behind_it(at: int) -> None:
    """Of the batch behind the damage nobody knows whether its offset, which its CRC leaves out, was hit as well."""
    disk = CrashDisk()
    path, records = gappy(disk)
    hit = [offset for start, end, offset in placed(disk, path) if start < at + 512 and at < end]
    scribble(disk, path, at, 512)
    gone = lacks(disk, records)
    assert set(hit) <= set(gone) <= {*hit, hit[-1] + 2}


def test_where_damage_cannot_be_seen_no_offset_between_gaps_is_believed() -> None:
    """The block is not what was sealed, and every batch in it is sound: the damage is where no CRC of them reaches."""
    disk = CrashDisk()
    path, records = gappy(disk)
    start, _, offset = placed(disk, path)[500]
    disk.damage(path, start + 7, 1)  # one offset more: it still lies between those of its neighbours
    disk.damage(path, start + 15, 2)
    disk.damage(path, start + 15, 2 | 4)
    assert offset in lacks(disk, records)


@pytest.mark.parametrize("second", [40, 90])
def test_where_a_block_is_damaged_in_two_places_no_offset_between_gaps_is_believed(second: int) -> None:
    disk = CrashDisk()
    path, records = gappy(disk)
    places = placed(disk, path)
    scribble(disk, path, places[400][0] + 60, 60)
    scribble(disk, path, places[400 + second][0] + 60, 60)
    disk.damage(path, places[420][0] + 7, 1)
    assert places[420][2] in lacks(disk, records)


def test_a_batch_inside_of_a_value_is_not_taken_for_one_between_gaps() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    inner = b"".join(  # at offsets that would fit
        build_batch([(b"k", b"inner", [], 1_000)], base_offset=1_000 + 2 * number, leader_epoch=0)
        for number in range(3)
    )
    for number in range(300):
        value = inner if number == 100 else b"v" * 300
        data = build_batch([(b"k", value, [], 1_000 + number)], base_offset=10 * number, leader_epoch=0)
        log.append(data, parse_header(data), 1_000)
    path = log.active.path
    log.roll()
    append(log, b"behind")
    settled(directory)
    records = read_all(log)
    directory.close(clean=True)
    replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 2_991}))
    outer = next(place for place in placed(disk, path) if place[2] == 1_000)
    scribble(disk, path, outer[0] + 40, 10)
    gone = lacks(disk, records)
    assert set(gone) <= {1_000, 1_010}


def test_in_a_log_that_nobody_compacted_a_batch_between_gaps_is_not_believed() -> None:
    disk = CrashDisk()
    path, records = gappy(disk, compacted=False)
    places = placed(disk, path)
    scribble(disk, path, places[400][0] + 60, 60)
    disk.damage(path, places[420][0] + 7, 1)
    assert places[420][2] in lacks(disk, records)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("gone", [1, 400, 5_000])
@pytest.mark.parametrize("size", [2, 200])
@pytest.mark.parametrize("rolled", [False, True])
def test_where_bytes_are_gone_from_the_middle_of_a_file_what_lies_behind_them_is_kept(
    place: float, gone: int, size: int, rolled: bool
) -> None:
    """All of it lies too far in front for its index, and in no block that is what was sealed."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    put(log, 600, size, 1_000)
    path = log.active.path
    records = stopped(directory, log, rolled=rolled)
    before, touched = cut_out(disk, path, place, gone)
    assert repaired(disk) == touched
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in touched}
    assert log.end_offset == 600 + rolled
    directory.close(clean=False)
    assert len(before) > len(disk.contents()[path])


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("size", [2, 200])
def test_behind_a_kill_what_recovery_wrote_in_its_place_tells_how_much_is_gone(more: int, size: int) -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    put(log, 600, size, 1_000)
    path = log.active.path
    settled(directory)
    put(log, more, size, 5_000)
    commit(directory)
    records = read_all(log)
    disk.kill()
    disk.power_on()
    _, touched = cut_out(disk, path, 0.5, 100)
    assert repair(disk)
    directory, log = opened(disk)
    left = read_all(log)
    lost = {offset for offset in records if offset not in left} - touched
    assert lost < {600, 601}, "over the one recovery wrote, and the other may be a part of what lies there now"
    assert all(records[offset] == value for offset, value in left.items())
    assert log.end_offset == 600 + more
    directory.close(clean=False)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("victim", [13, 22])
@pytest.mark.parametrize("size", [14, 200])
def test_what_looks_like_a_batch_in_a_damaged_one_is_not_kept_in_its_place(size: int, victim: int, clean: bool) -> None:
    """A value ends with one of the very offset, but for its last byte: that is the record's number of headers, 0."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    forged = build_batch([(None, b"forged", [], 1)], base_offset=victim, leader_epoch=0)[:-1]
    for number in range(25):
        append(log, b"q" * 250 + bytes(forged) if number == victim else b"v" * 300)
        commit(directory)
    settled(directory)
    records = read_all(log)
    path = next(each.path for each in reversed(log.segments) if each.base_offset <= victim)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    [at] = [at for at, header in batches(memoryview(disk.contents()[path])) if header.base_offset == victim]
    scribble(disk, path, at + 8, size)
    assert repair(disk)
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset != victim}
    directory.close(clean=False)
