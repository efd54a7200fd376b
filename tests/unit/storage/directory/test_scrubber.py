"""The scrubber: what it finds, how fast it reads, what it passes over, and where it goes on after a restart."""

from __future__ import annotations

import errno

import pytest
from tests.worlds.storage_workload import FIRST, SETTINGS, append, checkpoint, commit, housekeep, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.checkpoint.scrub_progress import (
    NO_KEY,
    ScrubProgress,
    decode_progress,
    encode_progress,
    read_progress,
    write_progress,
)
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.directory.scrubber import FIRST_SCRUB_DELAY_MS
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.segment.corruption import Damage

TP = TopicPartition("first", 0)
KIB = 1024
SCRUBBED = SETTINGS._replace(scrub_bytes_per_second=64 * KIB, scrub_interval_ms=3_600_000)
START_MS = 2_000_000


def filled(batches: int = 60) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log with sealed segments of about 200 KiB, each of four blocks."""
    disk = CrashDisk()
    directory = start(disk, SCRUBBED)
    log = directory.create_log(TP, FIRST, _wide())
    log.assign_epoch(0)
    for _ in range(batches):
        append(log, b"v" * 20_000)
        commit(directory)
        if log.active.size > 150 * KIB:
            checkpoint(directory)
    checkpoint(directory)
    housekeep(directory)
    assert sum(segment.sealed for segment in log.segments) == len(log.segments) - 1 >= 4
    return disk, directory, log


def _wide() -> PlainLogConfig:
    return PlainLogConfig(segment_bytes=200 * KIB, index_interval_bytes=4 * KIB)


def scrub(directory: LogDirectory, now_ms: int, jobs: int = 200) -> int:
    """Let the scrubber work, a call a second, until a round has ended; returns the time."""
    rounds = directory.scrubber.rounds
    while jobs and directory.scrubber.rounds == rounds:
        job = directory.take_scrub(now_ms)
        now_ms += 1000
        if job is not None:
            jobs -= 1
            job.run()
            directory.complete_scrub(job)
        assert now_ms < START_MS * 10, "it does nothing"
    return now_ms


def test_a_round_reads_every_sealed_byte_at_its_rate() -> None:
    _, directory, log = filled()
    sealed = sum(segment.size for segment in log.segments[:-1])
    began = START_MS + FIRST_SCRUB_DELAY_MS
    ended = scrub(directory, START_MS)
    assert directory.scrubber.bytes == sealed
    assert directory.scrubber.rounds == 1
    assert directory.findings.count == 0
    assert (ended - began) / 1000 >= sealed / (64 * KIB)
    assert directory.take_scrub(ended + 1000) is None, "the next round has its time"
    assert directory.take_scrub(began + 1000 + 3_600_000) is not None
    directory.close(clean=False)


def test_it_names_the_block_and_the_offsets_that_a_flipped_bit_touches() -> None:
    disk, directory, log = filled()
    told: list[Damage] = []
    directory.findings.on_found = told.append
    segment = log.segments[1]
    disk.damage(segment.path, 70 * KIB, 0x04)
    ended = scrub(directory, START_MS)
    (damage,) = told
    assert (damage.path, damage.start, damage.end) == (segment.path, 64 * KIB, 128 * KIB)
    assert damage.partition == TP
    size = segment.size // (segment.next_offset - segment.base_offset)
    assert damage.first_offset == segment.base_offset + 64 * KIB // size
    assert damage.last_offset == segment.base_offset + (128 * KIB - 1) // size
    assert directory.findings.of(log.path) == [damage]
    scrub(directory, ended + 3_600_000)
    assert directory.scrubber.rounds == 2
    assert len(told) == 1, "a range is told once"
    directory.close(clean=False)


def test_a_finding_that_knows_its_records_takes_the_place_of_one_that_does_not() -> None:
    disk, directory, log = filled()
    told: list[Damage] = []
    directory.findings.on_found = told.append
    segment = log.segments[1]
    disk.damage(segment.path, 70 * KIB, 0x04)
    met = Damage(segment.path, 64 * KIB, 128 * KIB, segment.base_offset, -1, "the bytes differ from the seal")
    directory.findings.add(met)
    scrub(directory, START_MS)
    (damage,) = directory.findings.known.values()
    assert damage.first_offset == segment.base_offset + 3
    assert damage.last_offset == segment.base_offset + 6
    directory.findings.add(met)
    assert told == [met, damage]
    assert directory.findings.count == 1, "it is the same range"
    directory.close(clean=False)


def test_a_damaged_seal_and_a_short_segment_are_findings() -> None:
    disk, directory, log = filled()
    disk.damage(log.segments[0].path_of(".seal"), 30)
    file = disk.open(log.segments[2].path, write=True)
    file.truncate(100)
    scrub(directory, START_MS)
    seal, short = directory.findings.known.values()
    assert seal.path.endswith(".seal")
    assert (short.path, short.start, short.end) == (log.segments[2].path, 100, log.segments[2].size)
    directory.close(clean=False)


def test_deleted_segments_and_logs_are_passed_over() -> None:
    disk, directory, log = filled()
    disk.damage(log.segments[0].path, 1000)
    assert directory.take_scrub(START_MS) is None
    job = directory.take_scrub(START_MS + FIRST_SCRUB_DELAY_MS + 1000)
    assert job is not None
    log.advance_start(log.segments[1].base_offset)
    log.detach_before(log.start_offset)
    job.run()
    directory.complete_scrub(job)
    assert directory.findings.count == 0, "what was found is in a segment that is gone"
    job = directory.take_scrub(START_MS + FIRST_SCRUB_DELAY_MS + 2000)
    directory.delete_log(log)
    assert job is not None
    job.run()
    directory.complete_scrub(job)
    scrub(directory, START_MS + FIRST_SCRUB_DELAY_MS + 3000)
    assert directory.scrubber.rounds == 1
    directory.close(clean=False)


def test_a_round_goes_on_after_a_restart_and_begins_anew_without_its_file() -> None:
    for lost in (False, True):
        disk, directory, log = filled(120)
        sealed = sum(segment.size for segment in log.segments[:-1])
        scrub(directory, START_MS, jobs=25)
        before = directory.scrubber.bytes
        assert 0 < before < sealed
        directory.close(clean=True)
        if lost:
            disk.damage("/data/duramen-scrub", 20)
        directory = start(disk, SCRUBBED)
        scrub(directory, START_MS + 100_000)
        assert directory.scrubber.rounds == 1
        if lost:
            assert directory.scrubber.bytes == sealed
        else:
            assert sealed - before <= directory.scrubber.bytes < sealed
        directory.close(clean=True)


def test_what_was_found_is_looked_at_first_after_a_restart_and_told_only_if_it_still_is_so() -> None:
    for mended in (False, True):
        disk, directory, log = filled()
        segments = [log.segments[number] for number in (1, 3)]
        for segment in segments:
            disk.damage(segment.path, 70 * KIB, 0x04)
        disk.damage(log.segments[2].path_of(".seal"), 30)
        ended = scrub(directory, START_MS)
        found = sorted(directory.findings.known)
        assert len(found) == 3
        assert len(directory.known_damage()) == 3
        progress = read_progress(disk, "/data")
        assert progress is not None
        assert sorted((each.path, each.start, each.end) for each in progress.known) == found
        directory.close(clean=True)
        if mended:
            disk.damage(segments[0].path, 70 * KIB, 0x04)
            del found[0]
        directory = start(disk, SCRUBBED)
        assert directory.take_scrub(ended) is None
        for seconds in range(1, 10):
            job = directory.take_scrub(ended + FIRST_SCRUB_DELAY_MS + 1000 * seconds)
            if job is not None:
                job.run()
                directory.complete_scrub(job)
        assert sorted(directory.findings.known) == found
        assert directory.scrubber.rounds == 0, "the next round has its time"
        log = directory.logs[FIRST, 0]
        log.advance_start(log.segments[2].base_offset)
        log.detach_before(log.start_offset)
        assert len(directory.known_damage()) == 2, "damage in a segment that retention took is none any more"
        directory.close(clean=False)


def test_a_place_that_ends_within_a_block_is_no_damage_of_a_segment_that_is_longer_now() -> None:
    """A compaction had put a longer one in place when the job ran, and the node died soon after that: the beginning of
    a block was held to the sum of all of it, and every start from then on told of damage."""
    disk, directory, log = filled()
    segment = log.segments[1]
    place = Damage(segment.path, 0, segment.size - 2, -1, -1, "the bytes differ from the seal")
    write_progress(disk, directory.path, ScrubProgress(START_MS, 0, NO_KEY, 0, 0), [place])
    assert segment.sealed
    directory.close(clean=False)
    directory = start(disk, SCRUBBED)
    scrub(directory, START_MS)
    assert directory.scrubber.bytes > segment.size
    assert directory.findings.count == 0
    directory.close(clean=False)


def test_it_can_be_turned_off() -> None:
    disk = CrashDisk()
    directory = start(disk, SCRUBBED._replace(scrub_bytes_per_second=0))
    assert directory.take_scrub(START_MS) is None
    assert directory.take_scrub(START_MS + FIRST_SCRUB_DELAY_MS + 1000) is None
    directory.close(clean=True)


def test_progress_survives_its_encoding_and_damage_is_noticed() -> None:
    for key in (NO_KEY, (FIRST, 3)):
        known = (Damage("first-0/00000000000000000000.log", 0, 65536, 0, 7, 'the bytes differ "somehow"\n'),)
        progress = ScrubProgress(17, 1 << 40, key, 5, 65536, known)
        content = encode_progress(progress)
        assert decode_progress(content) == progress
        for at in range(len(content) - 1):
            assert decode_progress(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]) is None


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("suffix", [".log", ".seal"])
def test_a_process_without_descriptors_has_found_nothing_and_looks_again(code: int, suffix: str) -> None:
    disk, directory, log = filled()
    disk.damage(log.segments[0].path, 70_000)
    sealed = sum(segment.size for segment in log.segments[:-1])
    refused = 0

    def none_left(call: DiskCall) -> OSError | None:
        nonlocal refused
        if call.operation != "open" or not call.path.endswith(suffix) or refused == 30:
            return None
        refused += 1
        return OSError(code, "too many open files")

    disk.fault = none_left
    ended = scrub(directory, START_MS)
    assert refused == 30
    assert directory.scrubber.bytes == sealed
    (found,) = directory.findings.known.values()
    assert (found.path, found.what) == (log.segments[0].path, "the bytes differ from the seal")
    refused = 0
    directory.close(clean=True)
    disk.end_process()
    disk.fault = None
    directory = start(disk, SCRUBBED)  # what was damaged is looked at first, and it is still damaged
    disk.fault = none_left
    for second in range(60):
        job = directory.take_scrub(ended + second * 1000 * 30)
        if job is not None:
            job.run()
            directory.complete_scrub(job)
    assert list(directory.findings.known.values()) == [found]
