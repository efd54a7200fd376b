"""What the crash states and the disk errors have found, each as the shortest run that shows it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.crash import session as session_of_a_run
from tests.crash.explore import check_storage, explore
from tests.crash.odd_paths import filled
from tests.crash.promises import check_directory, read_raw
from tests.crash.session import DATA, NOW, Session, topic_id
from tests.crash.states import crash_states, final_states
from tests.crash.tape import TapeDisk, TapeFile

from duramen.embedded import Record, open_log
from duramen.embedded import log as embedded_log
from duramen.embedded import world as embedded_world
from duramen.errors import DuramenError, StorageError
from duramen.storage.checkpoint.kafka_files import CHECKPOINT, CLEANER
from duramen.storage.compaction.compaction_pass import CleanerSettings
from duramen.storage.compaction.key_map import SLOT_BYTES
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.journal.format import PREFIX
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.read.tail_cache import LARGEST_BYTES
from duramen.storage.segment.seal import read_growing


def test_a_start_removes_half_written_checkpoint_files() -> None:
    session = Session(1)
    filled(session)
    session.stop()
    session.disk.end_process()
    session.disk.open(f"{DATA}/{CLEANER}.tmp", create=True, write=True).close()
    session.start()
    assert f"{DATA}/{CLEANER}.tmp" not in session.disk.contents()
    session.crash()


def test_a_hole_below_the_log_start_is_no_damage() -> None:
    """Retention renames segments oldest first; a power cut may keep the later rename and lose the earlier."""
    session = Session(1)
    session.start()
    session.create(1)
    session.commit()
    for _ in range(8):
        session.put(1, 1300)
        session.commit()
    session.checkpoint()
    session.advance_start(1, 5)
    session.commit()
    bases = [segment.base_offset for segment in session.log(1).segments]
    session.crash()
    session.disk.end_process()
    session.disk.remove(f"{DATA}/topic1-0/{bases[1]:020}.log")
    session.start()
    session.commit()
    session.checkpoint()
    session.keep_house(NOW)
    assert session.directory.recovery.damage == []
    assert session.directory.findings.count == 0
    session.crash()


def test_a_log_of_which_nothing_is_known_but_its_files_is_not_cut_because_it_could_not_be_read() -> None:
    """Its end was put down as offset 0 while it was offline, and the next start cut it there."""
    session = Session(1)
    filled(session)
    session.stop()
    disk = session.disk
    disk.end_process()
    for name in disk.contents():
        if name.endswith(CHECKPOINT) or name.removeprefix(f"{DATA}/").startswith(PREFIX):
            disk.remove(name)
    there = disk.exists

    def exists(path: str) -> bool:
        if path.endswith("index"):
            raise OSError(errno.EIO, "a bad sector", path)
        return there(path)

    with patch.object(disk, "exists", exists):
        session.start()
        assert list(session.directory.offline) == [(topic_id(1), 0)]
        session.directory.close(clean=False)
    disk.end_process()
    session.start()
    check_directory(session.directory, session.promises)
    session.crash()


def test_a_producer_is_known_after_a_stop_that_died_and_one_that_did_not() -> None:
    """Kafka's snapshot of a stop that died was taken for the whole; it knows one batch of each producer."""
    session = Session(1)
    session.start()
    session.create(1)
    session.commit()
    for _ in range(3):
        session.put(1, 100, producer=5)
    session.commit()
    disk = session.disk
    session.crash()
    disk.end_process()
    disk.open(f"{DATA}/topic1-0/{3:020}.snapshot", create=True, write=True).close()
    session.start()
    session.stop()
    disk.end_process()
    session.start()
    check_directory(session.directory, session.promises)
    assert len(read_raw(session.log(1))) == 3
    session.crash()


def test_a_log_of_a_program_tells_a_disk_error_as_every_other_failure() -> None:
    disk = TapeDisk()
    failing = OSError(errno.EIO, "a bad sector")
    with (
        patch.object(embedded_world, "RealDisk", lambda: disk),
        patch.object(embedded_log, "RealDisk", lambda: disk),
        open_log(DATA) as log,
    ):
        topic = log.topic("t")
        value = bytes(LARGEST_BYTES)  # is read from the file
        topic.append([Record(value)])
        with patch.object(TapeFile, "pread", side_effect=failing), pytest.raises(StorageError, match="cannot be read"):
            list(topic.read(0))
        assert [record.value for record in topic.read(0)] == [value]


def test_what_power_leaves_of_a_finished_run_is_what_was_promised() -> None:
    session = Session(1)
    filled(session)
    session.crash()
    for state in final_states(session.disk.tape, session.promises):
        check_storage(state)


def test_a_name_that_cannot_be_read_is_not_one_that_is_not_there(tmp_path: Path) -> None:
    disk = RealDisk()
    assert not disk.exists(str(tmp_path / "nothing"))
    assert disk.exists(str(tmp_path))
    failing = OSError(errno.EIO, "a bad sector")
    with patch("os.lstat", side_effect=failing), pytest.raises(OSError, match="a bad sector"):
        disk.exists(str(tmp_path / "anything"))


class _PowerCut(BaseException):
    """Ends a start in its middle."""


def _cut_off_at(path: str) -> Callable[[TapeFile], None]:
    """A sync that ends the process at this file."""
    sync = TapeFile.sync

    def cut_off(file: TapeFile) -> None:
        if file.path == path:
            raise _PowerCut
        sync(file)

    return cut_off


def _one_log() -> Session:
    """With a record that a checkpoint vouches for."""
    session = Session(1)
    session.start()
    session.create(1)
    session.put(1, 2500)
    session.commit()
    session.checkpoint()
    return session


@contextmanager
def _cut_off_before_names(session: Session) -> Iterator[None]:
    """Killed when the log's names are about to be synced."""
    sync = session.disk.sync_directory

    def cut_off(path: str) -> None:
        if path.endswith("topic1-0"):
            raise _PowerCut
        sync(path)

    with patch.object(session.disk, "sync_directory", cut_off), pytest.raises(_PowerCut):
        yield
    session.disk.end_process()


def _explore_power_cuts(name: str, session: Session) -> None:
    """Whatever a power cut leaves of the steps since `begin` is what was promised."""
    session.crash()
    found = explore(name, crash_states(session.disk.tape, first=session.first_step), check_storage)
    assert found.violations == []


def test_a_recovery_that_is_cut_off_leaves_no_seal_of_what_it_cut_off() -> None:
    """What was flushed and sealed, but never journaled, goes; so must its checksums, whatever name came through."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(2):
        session.put(1, 500)
    session.commit()
    session.checkpoint()
    kept = session.log(1).end_offset
    session.put(1, 500)
    session.put(1, 500)
    job = session.directory.take_checkpoint(True)
    assert job is not None
    for _, sync, _ in job.syncs:
        sync.run()
    folder = f"{DATA}/topic1-0"
    sealing = f"{folder}/{0:020}.sealing"
    before = session.disk.contents()[sealing]
    session.crash()
    session.disk.end_process()

    def cut_off(path: str) -> None:
        if path == folder:
            raise _PowerCut

    with patch.object(session.disk, "sync_directory", cut_off), pytest.raises(_PowerCut):
        session.start()
    session.disk.end_process()
    with_old_name = session.disk.open(sealing, create=True, write=True)
    with_old_name.truncate(0)
    with_old_name.pwritev([before], 0)
    with_old_name.close()
    session.start()
    assert session.log(1).end_offset == kept
    for _ in range(3):
        session.put(1, 500)
    session.commit()
    session.checkpoint()
    content = session.disk.contents()[f"{folder}/{0:020}.log"]
    seal = read_growing(session.disk, sealing, len(content))
    assert seal is not None
    assert seal.length == len(content)
    seal.check(memoryview(content), 0, sealing, 0)
    session.crash()


def test_a_growing_seal_whose_log_never_got_its_name_goes() -> None:
    """A power cut may keep its name and lose the log's; the next segment that begins there has other bytes."""
    session = Session(1)
    filled(session)
    session.crash()
    session.disk.end_process()
    stray = f"{DATA}/topic1-0/{1 << 20:020}.sealing"
    session.disk.open(stray, create=True, write=True).close()
    session.start()
    assert stray not in session.disk.contents()
    session.crash()


def test_a_growing_seal_that_came_back_beside_the_seal_goes() -> None:
    """After a compaction it would speak of bytes that were there before."""
    session = Session(1)
    filled(session)
    session.keep_house(NOW)
    session.checkpoint()
    session.crash()
    session.disk.end_process()
    sealed = next(name for name in session.disk.contents() if name.endswith(".seal") and "topic1-0" in name)
    came_back = sealed.removesuffix("seal") + "sealing"
    session.disk.open(came_back, create=True, write=True).close()
    session.start()
    assert sealed in session.disk.contents()
    assert came_back not in session.disk.contents()
    session.crash()


def test_a_pass_right_behind_another_leaves_nothing_that_looks_like_a_swap_of_its_own() -> None:
    """Of the first one's last renames some were lost, and a start undid the others: seal and log did not fit."""
    session = Session(1)
    session.start()
    session.create(1, compacted=True)
    session.commit()
    for _ in range(9):
        session.put(1, 700, records=3)
        session.commit()
    session.checkpoint()
    session.keep_house(NOW)
    few_keys = CleanerSettings(dedupe_bytes=8 * SLOT_BYTES, io_bytes=4096)  # the first pass does not get to the end
    with patch.object(session_of_a_run, "CLEANER", few_keys):
        session.compact(NOW)
        session.begin()
        session.compact(NOW)
    session.crash()
    found = explore("two passes", crash_states(session.disk.tape, first=session.first_step), check_storage)
    assert found.violations == []


def test_a_topic_that_is_made_under_the_name_of_one_that_is_being_deleted_is_not_that_one() -> None:
    """Its directory was there before its id, and the other one's deletion not yet in the journal."""
    session = Session(1)
    session.start()
    session.create(1, name="topic")
    session.put(1, 700)
    session.commit()
    session.checkpoint()
    session.begin()
    session.delete(1)
    session.create(2, name="topic")
    _explore_power_cuts("under its name", session)


def test_a_start_that_finds_a_topic_half_made_vouches_for_nothing_that_a_power_cut_takes() -> None:
    """Its files were there after a kill, and not their names; the start behind a power cut told of damage."""
    session = Session(1)
    session.start()
    with _cut_off_before_names(session):
        session.create(1)
    session.start()
    session.begin()
    session.epoch(1, 1)
    session.commit()
    _explore_power_cuts("half made", session)


def test_a_start_that_was_killed_behind_its_cut_has_the_next_one_sync_it() -> None:
    """The file had its length by then, so nothing was done; a power cut brought back what a newer one overlaps."""
    session = _one_log()
    session.put(1, 400)
    session.directory.flush()
    file = session.log(1).active.open_file()
    file.sync()  # the kernel has written it back
    session.crash()
    session.disk.end_process()
    with patch.object(TapeFile, "sync", _cut_off_at(f"{DATA}/topic1-0/{0:020}.log")), pytest.raises(_PowerCut):
        session.start()
    session.disk.end_process()
    session.start()
    session.epoch(1, 2)
    session.put(1, 2500)
    session.commit()
    session.checkpoint()
    session.begin()
    session.put(1, 200)
    session.commit()
    _explore_power_cuts("killed behind its cut", session)


def test_a_start_that_was_killed_when_it_had_removed_segments_has_the_next_one_sync_that() -> None:
    """They were gone, so nothing was done; a power cut brought one back between newer ones."""
    session = _one_log()
    session.put(1, 400, records=3)
    for _ in range(2):
        session.put(1, 2500, records=2)
    session.directory.flush()
    session.log(1).disk.sync_directory(f"{DATA}/topic1-0")
    session.crash()
    session.disk.end_process()
    with _cut_off_before_names(session):
        session.start()
    session.start()
    session.epoch(1, 2)
    for _ in range(2):
        session.put(1, 2500, records=9)
        session.commit()
    session.begin()
    session.put(1, 200)
    session.commit()
    _explore_power_cuts("killed behind a removal", session)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_known_of_producers_before_a_truncation_is_not_believed_behind_it(checkpoint: bool) -> None:
    """The snapshot of a clean stop, at an offset to which the log came again: a retry was stored twice."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(2):
        session.put(1, 100, producer=7)
    session.stop()
    for _ in range(2):  # the second start does not know whether both of the snapshot's files are whole
        session.disk.end_process()
        session.start()
        session.epoch(1, session.log(1).epochs.latest + 1)
        session.commit()
        session.crash()
    session.disk.end_process()
    session.start()
    session.truncate(1, 0)
    session.commit()
    session.epoch(1, 9)
    for _ in range(3):
        session.put(1, 100, producer=9)
    session.commit()
    if checkpoint:
        session.checkpoint()
    session.crash()
    session.disk.end_process()
    session.start()
    check_directory(session.directory, session.promises)
    session.crash()


def test_a_truncation_takes_segments_from_who_is_about_to_seal_them() -> None:
    """Their files were closed under the job, which fenced the directory; a seal without a log was left."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(3):
        session.put(1, 2500)
    session.commit()
    session.checkpoint()
    jobs = session.directory.take_maintenance(NOW)
    session.truncate(1, 0)
    session.commit()
    for job in jobs:
        try:
            job.run()
        except DuramenError as error:
            job.fail(error)
        else:
            job.complete()
    assert session.directory.journal.failed is None
    assert session.directory.findings.count == 0
    assert not [name for name in session.disk.contents() if name.endswith(".seal")]
    session.put(1, 300)
    session.commit()
    session.crash()
    session.disk.end_process()
    session.start()
    check_directory(session.directory, session.promises)
    session.crash()


def test_a_log_start_inside_a_batch_that_is_cut_off_goes_back_with_the_end() -> None:
    """Memory went back to where the batch began, a start did not: what was written there next was not to be read."""
    session = Session(1)
    session.start()
    session.create(1)
    session.put(1, 300, records=3)
    session.put(1, 300, records=3)
    session.commit()
    session.advance_start(1, 4)
    session.commit()
    session.truncate(1, 4)
    session.commit()
    assert (session.log(1).start_offset, session.log(1).end_offset) == (3, 3)
    session.put(1, 300)
    session.commit()
    session.crash()
    session.disk.end_process()
    session.start()
    assert [base for base, _ in read_raw(session.log(1))] == [3]
    session.crash()


def test_a_seal_that_a_truncation_overtook_is_not_written() -> None:
    """It spoke of the segment as it was before the cut; a crash before it was taken away left the partition offline."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(3):
        session.put(1, 2500)
    session.commit()
    session.checkpoint()
    jobs = session.directory.take_maintenance(NOW)
    session.truncate(1, 1)
    session.commit()
    session.put(1, 300)
    session.log(1).roll()
    session.commit()
    session.checkpoint()
    for job in jobs:
        job.run()
    session.crash()
    session.disk.end_process()
    session.start()
    check_directory(session.directory, session.promises)
    session.crash()


def test_what_a_truncation_overtook_is_sealed_as_it_is_now() -> None:
    """What was sealed before the cut counted as the seal of what came to be in that segment behind it."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(3):
        session.put(1, 2500, producer=5)
    session.commit()
    session.checkpoint()
    jobs = session.directory.take_maintenance(NOW)
    session.truncate(1, 1)
    session.commit()
    session.put(1, 300)
    session.log(1).roll()
    session.commit()
    session.checkpoint()
    for job in jobs:
        job.run()
        job.complete()
    assert not [name for name in session.disk.contents() if name.endswith(".seal")]
    session.keep_house(NOW)
    assert [name for name in session.disk.contents() if name.endswith(".seal")]
    check_directory(session.directory, session.promises)
    session.crash()


def test_producers_that_a_truncation_overtook_are_not_written() -> None:
    """Their file was taken away when the job was accounted for, and a power cut brought it back."""
    session = Session(1)
    session.start()
    session.create(1)
    for _ in range(3):
        session.put(1, 300, producer=5)
    session.commit()
    session.log(1).config.retention_ms = 1000  # type: ignore[attr-defined]
    session.promises[topic_id(1)].start_asked = 3
    jobs = [job for job in session.directory.take_maintenance(NOW + 100_000) if isinstance(job, ProducerSnapshotJob)]
    assert jobs
    session.truncate(1, 2)
    session.commit()
    jobs[0].run()
    assert not session.disk.exists(f"{session.log(1).path}/{3:020}.snapshot")
    session.crash()


@pytest.mark.parametrize("rolled", [False, True])
def test_what_a_checkpoint_synced_survives_its_removal_before_the_journal_says_more(rolled: bool) -> None:
    """A page-cache log of which the journal knows a beginning, and not yet that records followed it there."""
    session = Session(1)
    session.start()
    session.create(1, stable=False)
    session.commit()
    if rolled:
        session.put(1, 300)
        session.commit()
        session.checkpoint()
        session.log(1).roll()
        session.commit()
    for _ in range(3):
        session.put(1, 300)
    for _ in range(4):
        session.checkpoint_round()
    end = session.log(1).end_offset
    assert session.promises[topic_id(1)].synced_end == end
    session.crash()
    session.disk.end_process()
    session.disk.remove(f"{DATA}/{CHECKPOINT}")
    session.start()
    assert session.log(1).end_offset == end
    check_directory(session.directory, session.promises)
    session.crash()
