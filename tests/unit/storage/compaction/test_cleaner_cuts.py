"""Logs that are cut or begun anew below what passes have looked at, whose keys come again."""

from __future__ import annotations

import errno

import pytest
from tests.unit.storage.compaction.test_cleaner import NOW, TOPIC_ID, TP, Bench

from duramen.sim.world.disk import DiskCall, NodeDied
from duramen.storage.checkpoint.kafka_files import CleanedLog, decode_cleaned, decode_offsets
from duramen.storage.files.disk_full import as_disk_full
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import build_batch, parse_header

KEY = TOPIC_ID, 0
CLEANED = "/data/duramen-cleaned"


def cleaned(bench: Bench, late_ms: int = 0) -> int:
    """A pass was over it; returns up to where."""
    for number in range(12):
        bench.put((b"a", b"old %d" % number), (b"b", b"%d" % number))
        if number % 4 == 3:
            bench.roll()
    bench.clean()
    if late_ms:
        bench.directory.cleaner.was_late(bench.log, late_ms)()
    assert noted(bench) == {KEY: CleanedLog(24, late_ms)}
    return 24


def noted(bench: Bench) -> object:
    return decode_cleaned(bench.disk.contents()[CLEANED])


def follow(bench: Bench, count: int) -> None:
    """Batches of one key, as a leader has them."""
    for number in range(count):
        data = build_batch([(b"a", b"new %d" % number, (), NOW)], base_offset=bench.log.end_offset, leader_epoch=0)
        append_as_follower(bench.log, data, parse_header(data), bench.now)
        bench.commit()


def again(bench: Bench) -> None:
    bench.disk.end_process()
    bench.open()


def values(bench: Bench) -> list[bytes | None]:
    return [value for _, key, value in bench.left() if key == b"a"]


@pytest.mark.parametrize("how", ["stop", "kill", "power", "kill behind a checkpoint", "run on"])
@pytest.mark.parametrize("anew", [True, False])
def test_what_comes_there_is_looked_at(anew: bool, how: str) -> None:
    bench = Bench()
    end = cleaned(bench)
    if anew:
        bench.directory.begin_anew(bench.log, 2)
    else:
        truncate_log(bench.log, 2)
    first = bench.log.end_offset
    bench.commit()
    for job in bench.directory.take_rebuilds():
        job.run()
        job.complete()
    follow(bench, 30)
    if how == "kill behind a checkpoint":
        bench.housekeep()
        bench.checkpoint()
    if how == "stop":
        bench.directory.close(clean=True)
    elif how == "power":
        bench.disk.power_cut()
        bench.disk.power_on()
    elif how != "run on":
        bench.disk.kill()
        bench.disk.power_on()
    if how != "run on":
        again(bench)
    assert bench.log.end_offset == first + 30 > end
    assert bench.directory.cleaner.first_dirty(bench.log) <= first <= 2
    bench.housekeep()
    bench.roll()
    bench.clean()
    follow(bench, 1)
    bench.roll()
    bench.clean()
    assert values(bench) == [b"new 0"], "the last one of the key"
    bench.disk.kill()
    bench.disk.power_on()
    again(bench)
    assert bench.directory.cleaner.first_dirty(bench.log) == first + 31


@pytest.mark.parametrize("power", [False, True])
def test_no_death_leaves_a_note_of_the_old_log_to_the_new_one(power: bool) -> None:
    """Nor does one take from the old one how long tombstones have to stay, where the new one has not come to be."""
    call, died, seen = 0, True, set()
    while died:
        call += 1
        bench = Bench()
        end = cleaned(bench, late_ms=5000)
        last = bench.disk.calls + call
        if power:
            bench.disk.cut_at = last
        else:
            bench.disk.kill_at = last
        try:
            bench.directory.begin_anew(bench.log, 2)
            follow_from = bench.log.end_offset
            bench.commit()
            bench.housekeep()
            follow(bench, 30)
            bench.checkpoint()
            bench.housekeep()
            assert (follow_from, bench.directory.cleaner.is_outdated) == (2, False)
            died = False
        except NodeDied:
            bench.disk.power_on()
        bench.disk.cut_at = bench.disk.kill_at = None
        if died and call % 2:  # a start dies, too
            starting = bench.disk.calls + 1 + call % 40
            bench.disk.kill_at = starting
            try:
                again(bench)
                bench.disk.kill_at = None
                bench.disk.kill()
            except NodeDied:
                bench.disk.kill_at = None
            bench.disk.power_on()
        again(bench)
        begins_at = bench.log.start_offset
        seen.add(begins_at)
        cleaner = bench.directory.cleaner
        assert (cleaner.first_dirty(bench.log), cleaner.lateness(bench.log)) == (
            (2, 1000) if begins_at else (end, 5000)
        ), call
        assert not cleaner.is_outdated
    assert seen == {0, 2}


def test_no_checkpoint_is_taken_before_it_is_written_anew() -> None:
    bench = Bench()
    cleaned(bench)
    bench.directory.begin_anew(bench.log, 2)
    bench.commit()
    assert noted(bench) == {KEY: CleanedLog(24)}
    assert bench.directory.take_checkpoint(force=True) is None
    bench.disk.fault = lambda call: OSError(errno.ENOSPC, "full", call.path) if _is_note(call) else None
    for job in bench.directory.take_maintenance(bench.now):
        with pytest.raises(OSError) as error:
            job.run()
        job.fail(as_disk_full(error.value))
    assert bench.directory.journal.failed is None
    assert bench.directory.take_checkpoint(force=True) is None
    bench.disk.fault = None
    (job,) = bench.directory.take_maintenance(bench.now)
    job.run()
    assert bench.directory.take_checkpoint(force=True) is None
    job.complete()
    assert noted(bench) == {}
    assert decode_offsets(bench.disk.contents()["/data/cleaner-offset-checkpoint"]) == {}
    assert bench.directory.take_checkpoint(force=True) is not None


def _is_note(call: DiskCall) -> bool:
    return call.operation == "pwritev" and call.path.startswith(CLEANED)


def test_it_waits_for_a_pass_that_writes_the_same_file() -> None:
    bench = Bench()
    cleaned(bench)
    other = bench.directory.create_log(TP._replace(topic="other"), bytes(15) + b"\x57", bench.config)
    for number in range(6):
        data = build_batch([(b"k", b"%d" % number, (), NOW)], base_offset=number, leader_epoch=0)
        other.append(data, parse_header(data), NOW)
        if number % 2:
            other.roll()
    first = next(log for log in bench.directory.logs.values() if log is not other)
    _rounds(bench)
    cleaning = bench.take()
    assert cleaning is not None
    assert cleaning.log is other
    while bench.directory.cleaner.noting is not cleaning:
        job = cleaning.next_job(bench.now)
        if bench.directory.cleaner.noting is cleaning:
            break
        _groups(bench) if job is None else job()
    bench.directory.begin_anew(first, 2)
    _groups(bench)
    assert bench.directory.cleaner.take_note() is None
    assert job is not None
    job()
    while not cleaning.over:
        job = cleaning.next_job(bench.now)
        _groups(bench) if job is None else job()
    note = bench.directory.cleaner.take_note()
    assert note is not None
    note.run()
    note.complete()
    assert set(decode_cleaned(bench.disk.contents()[CLEANED]) or ()) == {(other.topic_id, 0)}


def _groups(bench: Bench) -> None:
    while (group := bench.directory.take_group()) is not None:
        group.run()
        bench.directory.journal.complete(group)


def _rounds(bench: Bench) -> None:
    _groups(bench)
    force = True
    while (job := bench.directory.take_checkpoint(force)) is not None:
        job.run()
        bench.directory.complete_checkpoint(job)
        if job.files is not None:
            break
        force = False
    _groups(bench)
    bench.housekeep()


def test_a_log_that_nobody_compacts_writes_nothing() -> None:
    bench = Bench()
    for number in range(3):
        bench.put((b"a", b"%d" % number))
    bench.commit()
    bench.directory.begin_anew(bench.log, 2)
    bench.commit()
    assert bench.directory.cleaner.take_note() is None
    assert bench.directory.take_checkpoint(force=True) is not None
