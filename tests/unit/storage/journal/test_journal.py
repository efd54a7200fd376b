"""The journal alone: groups, laps, torn tails, damage, fencing and a full disk."""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from duramen.errors import FencedDirectoryError, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.files.sync_history import SyncHistory
from duramen.storage.journal.format import (
    ENTRY_SIZE,
    FORMAT,
    HEADER_BLOCK,
    EntryKind,
    PartHeader,
    encode_part_header,
    parse_part_name,
)
from duramen.storage.journal.journal import MAX_BUFFERS, Journal
from duramen.storage.journal.parts import PartMaker
from duramen.storage.journal.reader import JournalContents, read_journal
from duramen.storage.journal.ring import JournalLimits
from duramen.wire.checksum import crc32c

KIB = 1024
FEW = JournalLimits(total=128 * KIB, entries=5, part=32 * KIB, first_part=16 * KIB, bypass=8 * KIB)
SMALL = JournalLimits(total=128 * KIB, entries=1000, part=32 * KIB, first_part=16 * KIB, bypass=8 * KIB)
ID = bytes(range(16))


class FakeSegment:
    def __init__(self, disk: CrashDisk, path: str) -> None:
        disk.make_directories("/d/t-0")
        self.file = disk.open(path, create=True, write=True)
        self.syncs: SyncHistory | None = None

    def open_file(self):
        return self.file


class FakeLog:
    def __init__(self, disk: CrashDisk, topic_id: bytes = ID) -> None:
        self.tp = TopicPartition("t", 0)
        self.topic_id = topic_id
        self.path = "/d/t-0"
        self.active = FakeSegment(disk, f"/d/t-0/{topic_id[:1].hex()}.log")
        self.end_offset = self.durable = 0
        self.position = 0
        self.flushed: list[bytes] = []

    def mark_durable(self, offset: int) -> None:
        self.durable = max(self.durable, offset)

    def flush(self) -> None:
        for data in self.flushed:
            self.active.file.pwritev([data], self.position)
            self.position += len(data)
        self.flushed.clear()


def start(disk: CrashDisk, limits: JournalLimits = SMALL, generation: int = 0) -> Journal:
    disk.make_directories("/d")
    disk.sync_directory("/")
    maker = PartMaker(disk, "/d", generation, seed=77)
    journal = Journal(disk, maker, limits, 1, 0)
    journal.start(maker.make(limits.first_part))
    return journal


def batch(size: int, fill: bytes = b"x") -> bytes:
    """Bytes that look to the journal like a batch of one record."""
    return (bytes(27) + fill * size)[:size]


def put(journal: Journal, log: FakeLog, data: bytes) -> int:
    offset = log.end_offset
    log.end_offset += 1
    log.flushed.append(data)
    return journal.append(EntryKind.BATCH, log, offset, 3, 0, offset * 100, data)


def commit(journal: Journal) -> int:
    groups = 0
    while (group := journal.take_group()) is not None:
        group.run()
        journal.complete(group)
        groups += 1
    return groups


def put_until_refused(journal: Journal, log: FakeLog) -> None:
    for _ in range(1000):
        journal.admit(4000)
        put(journal, log, batch(4000))
        commit(journal)


def read(disk: CrashDisk) -> JournalContents:
    contents = read_journal(disk, "/d")
    contents.close()
    return contents


def test_entries_come_back_with_their_fields_and_data() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    assert put(journal, log, batch(100, b"a")) == 1
    assert journal.append(EntryKind.TRUNCATE, log, 1, -1, 0, 100) == 2
    assert commit(journal) == 1
    assert (journal.durable_lsn, log.durable) == (2, 1)
    contents = read_journal(disk, "/d")
    first, second = contents.entries
    assert (first.kind, first.topic_id, first.epoch, first.offset, first.next_offset) == (EntryKind.BATCH, ID, 3, 0, 1)
    assert contents.parts[0].data(first.data_position, first.size) == batch(100, b"a")
    assert (second.lsn, second.kind, second.offset, second.position) == (2, EntryKind.TRUNCATE, 1, 100)
    contents.close()


def test_nothing_is_durable_before_its_group_has_run() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    put(journal, log, batch(50))
    group = journal.take_group()
    assert group is not None
    put(journal, log, batch(50))
    assert journal.take_group() is None
    assert (journal.durable_lsn, log.durable, journal.has_pending) == (0, 0, True)
    group.run()
    assert journal.complete(group) == [log]
    assert (journal.durable_lsn, log.durable) == (1, 1)
    disk.power_cut()
    disk.power_on()
    assert len(read(disk).entries) == 1


@pytest.mark.parametrize("torn", [False, True])
def test_a_torn_group_is_cut_and_is_no_damage(torn: bool) -> None:
    for cut in range(1, 5):
        disk = CrashDisk(torn=torn)
        disk.random.seed(cut)
        journal, log = start(disk), FakeLog(disk)
        put(journal, log, batch(2000))
        commit(journal)
        for _ in range(5):
            put(journal, log, batch(1000))
        group = journal.take_group()
        assert group is not None
        group.part.file.pwritev(group.buffers, group.position)
        disk.power_cut()
        disk.power_on()
        contents = read(disk)
        assert contents.damage is None
        assert 1 <= len(contents.entries) <= 6
        assert [entry.lsn for entry in contents.entries] == list(range(1, len(contents.entries) + 1))


def test_a_bad_entry_below_a_later_durable_mark_is_damage() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    for _ in range(3):
        put(journal, log, batch(300))
        commit(journal)
    disk.damage("/d/duramen-journal-00000000-0000.part", HEADER_BLOCK + 512 + 104 + ENTRY_SIZE + 30)
    contents = read(disk)
    assert contents.damage is None or contents.damage.start > HEADER_BLOCK
    disk.damage("/d/duramen-journal-00000000-0000.part", HEADER_BLOCK + 104 + ENTRY_SIZE + 30)
    damage = read(disk).damage
    assert damage is not None
    assert damage.path == "/d/duramen-journal-00000000-0000.part"
    assert damage.start == HEADER_BLOCK + 104


def test_the_last_group_is_protected_by_an_idle_mark_only() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    put(journal, log, batch(300))
    commit(journal)
    position = HEADER_BLOCK + 104 + ENTRY_SIZE + 30
    disk.damage("/d/duramen-journal-00000000-0000.part", position)
    assert read(disk).damage is None
    disk.damage("/d/duramen-journal-00000000-0000.part", position)
    mark = journal.take_idle_mark()
    assert mark is not None
    mark.run()
    journal.complete(mark)
    assert journal.take_idle_mark() is None
    assert read(disk).damage is None
    disk.damage("/d/duramen-journal-00000000-0000.part", position)
    assert read(disk).damage is not None


def test_a_recycled_part_never_yields_entries_of_an_earlier_lap() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    checkpointed = 0
    for number in range(300):
        put(journal, log, batch(1500, bytes([number % 250 + 1])))
        commit(journal)
        contents = read(disk)
        assert contents.damage is None
        assert contents.next_lsn == journal.next_lsn
        assert contents.entries[0].lsn == max(contents.checkpoint_lsn, 1)
        assert contents.checkpoint_lsn >= checkpointed
        if number % 7 == 6:
            checkpointed = journal.checkpoint_lsn
            journal.recycle(journal.next_lsn - 3)
    assert journal.laps > 10
    assert journal.size <= SMALL.total


def test_a_part_is_reused_only_after_a_durable_mark_released_it() -> None:
    """Cut the power in every disk call while parts are recycled: what was durable is always read back."""
    calls = 0
    cut = 1
    while True:
        disk = CrashDisk()
        journal, log = start(disk), FakeLog(disk)
        disk.cut_at = disk.calls + cut
        durable = checkpoint = 0
        try:
            for number in range(40):
                put(journal, log, batch(3000))
                commit(journal)
                durable = journal.durable_lsn
                if number % 5 == 4:
                    checkpoint = durable - 2
                    journal.recycle(checkpoint)
        except BaseException:
            if disk.powered:
                raise
        else:
            break
        disk.power_on()
        contents = read(disk)
        assert contents.damage is None
        assert contents.checkpoint_lsn <= max(checkpoint, 1)
        assert contents.next_lsn > durable
        cut += 1
        calls += 1
    assert calls > 80


def test_a_large_share_of_a_group_becomes_an_extent() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    assert put(journal, log, batch(3000)) == 1
    assert put(journal, log, batch(6000)) == 2
    assert put(journal, log, batch(50_000)) == 2
    assert put(journal, log, batch(7)) == 2
    synced = len(disk.record or ())
    disk.record = []
    commit(journal)
    operations = [(call.operation, call.path) for call in disk.record]
    assert operations[-4:] == [
        ("sync", "/d/t-0/00.log"),
        ("sync_directory", "/d/t-0"),
        ("pwritev", "/d/duramen-journal-00000000-0000.part"),
        ("sync", "/d/duramen-journal-00000000-0000.part"),
    ]
    assert synced == 0
    extent = read(disk).entries[1]
    assert extent.extent is not None
    assert (extent.kind, extent.offset, extent.next_offset, extent.extent.length) == (EntryKind.EXTENT, 1, 4, 56_007)
    assert log.durable == 4


def test_a_truncation_takes_back_what_groups_under_way_would_call_durable() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    for _ in range(3):
        put(journal, log, batch(10))
    group = journal.take_group()
    assert group is not None
    log.end_offset = 1
    journal.append(EntryKind.TRUNCATE, log, 1, -1, 0, 10)
    put(journal, log, batch(10))
    put(journal, log, batch(10))
    group.run()
    journal.complete(group)
    assert log.durable == 1
    commit(journal)
    assert log.durable == 3


def test_a_group_of_more_buffers_than_one_write_takes() -> None:
    disk = CrashDisk()
    limits = JournalLimits(total=4 << 20, entries=9999, part=1 << 20, first_part=1 << 20, bypass=1 << 19)
    journal, log = start(disk, limits), FakeLog(disk)
    for _ in range(MAX_BUFFERS):
        put(journal, log, batch(40))
    assert commit(journal) == 1
    assert len(read(disk).entries) == MAX_BUFFERS


def test_a_failed_sync_fences_for_good() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    put(journal, log, batch(10))
    group = journal.take_group()
    assert group is not None
    put(journal, log, batch(10))
    disk.fault = lambda call: OSError(errno.EIO, "I/O error") if call.operation == "sync" else None
    with pytest.raises(OSError, match="I/O"):
        group.run()
    journal.fail(group, OSError(errno.EIO, "I/O error"))
    disk.fault = None
    for call in (lambda: put(journal, log, batch(10)), lambda: journal.admit(10)):
        with pytest.raises(FencedDirectoryError, match="I/O error"):
            call()
    assert journal.take_group() is None
    assert journal.take_idle_mark() is None
    assert journal.durable_lsn == 0


def test_at_its_bound_the_journal_refuses_until_a_checkpoint_was_recorded() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    with pytest.raises(KafkaError, match="journal is full"):
        put_until_refused(journal, log)
    assert journal.size <= SMALL.total
    durable = journal.durable_lsn
    assert durable == journal.last_lsn
    journal.recycle(journal.next_lsn)
    mark = journal.take_idle_mark()
    assert mark is not None
    mark.run()
    journal.complete(mark)
    journal.admit(4000)
    put(journal, log, batch(4000))
    commit(journal)
    assert [entry.lsn for entry in read(disk).entries] == [durable + 1]


def test_a_full_disk_refuses_before_anything_is_queued() -> None:
    disk = CrashDisk(capacity=70 * KIB)
    journal, log = start(disk), FakeLog(disk)
    with pytest.raises(KafkaError, match="no room") as refused:
        put_until_refused(journal, log)
    assert refused.value.retriable
    assert log.durable == log.end_offset
    assert len(read(disk).entries) == log.end_offset
    assert [name for name in disk.list_directory("/d") if name.endswith(".new")] == []


def test_growth_off_the_loop_and_its_failure() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    job = journal.take_growth()
    assert job is not None
    assert journal.take_growth() is None
    disk.fault = lambda call: OSError(errno.ENOSPC, "full") if call.operation == "preallocate" else None
    with pytest.raises(OSError, match="full") as error:
        job.run()
    journal.fail_growth(job, error.value)
    disk.fault = None
    job = journal.take_growth()
    assert job is not None
    job.run()
    journal.complete_growth(job)
    assert journal.take_growth() is None
    disk.record = []
    for _ in range(4):
        put(journal, log, batch(4000))
        commit(journal)
    assert not [call for call in disk.record if call.operation == "preallocate"]


def test_only_the_newest_generation_counts() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    put(journal, log, batch(10))
    commit(journal)
    newer = start(disk, generation=1)
    contents = read(disk)
    assert (contents.generation, contents.entries) == (1, [])
    newer.close()


def test_names_and_headers_that_are_no_journal() -> None:
    assert parse_part_name("duramen-journal-00000003-0001.part") == (3, 1)
    for name in (
        "duramen-journal-3.part",
        "duramen-journal-x-1.part",
        "journal-1-1.part",
        "duramen-journal-1-1.part.new",
    ):
        assert parse_part_name(name) is None
    disk = CrashDisk()
    disk.make_directories("/d")
    file = disk.open("/d/duramen-journal-00000000-0000.part", create=True, write=True)
    block = bytearray(encode_part_header(PartHeader(0, 0, 1)))
    file.pwritev([block], 0)
    for at in (9, HEADER_BLOCK // 2 + 9):  # the header is there twice
        contents = read_journal(disk, "/d")
        contents.close()
        assert contents.damage is None
        block[at] ^= 1
        file.pwritev([block], 0)
    contents = read_journal(disk, "/d")
    contents.close()
    assert contents.damage is not None
    assert (contents.damage.start, contents.damage.end) == (0, 4096)
    with pytest.raises(StorageError, match="two parts"):
        JournalLimits(total=1000)


def test_a_later_release_s_journal_is_refused_and_an_earlier_one_s_read() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    file = disk.open("/d/duramen-journal-00000000-0000.part", create=True, write=True)
    for version, is_read in ((1, True), (FORMAT, True), (FORMAT + 1, False)):
        block = bytearray(encode_part_header(PartHeader(0, 0, 1)))
        for at in (0, HEADER_BLOCK // 2):
            size = 32
            block[at + 7] = version
            block[at + size : at + size + 4] = crc32c(bytes(block[at : at + size])).to_bytes(4, "big")
        file.pwritev([block], 0)
        with closing(read_journal(disk, "/d")) as contents:
            assert (contents.damage is None) == is_read
            if is_read:
                contents.check_readable()
                continue
            with pytest.raises(StorageError, match="a later release"):
                contents.check_readable()


def test_record_data_that_holds_a_journal_entry_is_not_taken_for_one() -> None:
    disk = CrashDisk()
    other, other_log = start(disk), FakeLog(disk)
    put(other, other_log, batch(10))
    commit(other)
    stored = disk.contents()["/d/duramen-journal-00000000-0000.part"][HEADER_BLOCK : HEADER_BLOCK + 1024]
    disk = CrashDisk()
    disk.make_directories("/d")
    maker = PartMaker(disk, "/d", 0, seed=78)
    journal = Journal(disk, maker, SMALL, 1, 0)
    journal.start(maker.make(SMALL.first_part))
    log = FakeLog(disk)
    for padding in range(0, 512, 8):
        put(journal, log, bytes(27 + padding) + stored)
        journal.recycle(journal.next_lsn)
        commit(journal)
    calls: list[DiskCall] = disk.record or []
    assert calls == []
    contents = read(disk)
    assert contents.damage is None
    assert contents.next_lsn == journal.next_lsn


def test_a_torn_first_group_of_a_new_lap_never_hides_what_recovery_needs() -> None:
    """Checkpoints end while a group is in flight; then some later group is torn so that its first sector is garbage."""
    laps = set()
    for torn_group in range(2, 40):
        disk = CrashDisk()
        journal, log = start(disk), FakeLog(disk)
        for number in range(torn_group):
            put(journal, log, batch(5000))
            group = journal.take_group()
            assert group is not None
            if number == torn_group - 1:
                break
            group.run()
            if number % 3 == 2:
                journal.recycle(group.first_lsn)
            journal.complete(group)
        laps.add(group.part.lap)
        group.part.file.pwritev([b"\xff" * 512], group.position)
        group.part.file.sync()
        durable = journal.durable_lsn
        disk.power_cut()
        disk.power_on()
        contents = read(disk)
        assert contents.damage is None, torn_group
        assert contents.next_lsn == durable + 1
    assert max(laps) > 6


def test_the_bound_of_entries_refuses_batches_until_a_checkpoint() -> None:
    disk = CrashDisk()
    journal, log = start(disk, FEW), FakeLog(disk)
    for _ in range(5):
        put(journal, log, batch(100, b"a"))
    with pytest.raises(KafkaError, match="5 entries"):
        journal.admit(100)
    assert journal.append(EntryKind.ROLL, log, 5, -1, 5, 0) == 6  # what is no batch is never refused: it makes room
    commit(journal)
    journal.recycle(journal.next_lsn)
    journal.admit(100)
    put(journal, log, batch(100, b"a"))


def parts_in_use(entries: int) -> tuple[CrashDisk, Journal, list[str]]:
    """A journal with so many entries of 3,000 bytes, one per group, and the paths of its parts, in the order of use."""
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    order: list[str] = []
    for number in range(entries):
        put(journal, log, batch(3000))
        group = journal.take_group()
        assert group is not None
        path = group.part.file.path
        order = [each for each in order if each != path] + [path]
        group.run()
        journal.complete(group)
        if number == entries // 2:
            journal.recycle(journal.next_lsn - 1)
    return disk, journal, order


@pytest.mark.parametrize("entries", range(1, 30))
@pytest.mark.parametrize("cut", [False, True])
def test_the_part_in_front_tells_that_the_newest_one_is_gone(entries: int, cut: bool) -> None:
    """The journal ended where it began, for a recovery, and what was acknowledged in it was cut off untold."""
    disk, journal, order = parts_in_use(entries)
    if cut:
        disk.power_cut()
        disk.power_on()
    assert read(disk).damage is None
    assert read(disk).next_lsn == journal.next_lsn
    if len(order) == 1:
        return  # then the generation is gone, and the checkpoint tells
    disk.remove(order[-1])
    contents = read(disk)
    assert contents.damage is not None
    assert order[-2].rpartition("/")[2] in str(contents.damage)
    assert contents.damage.path == order[-1]
    assert "missing" in contents.missing


def test_also_where_the_checkpoint_has_all_that_the_mark_in_front_speaks_of() -> None:
    """Of the part's first group; what came behind it was cut off all the same."""
    disk, journal, (_, path) = parts_in_use(5)
    log, order = FakeLog(disk), [path, path]
    while not order[-2].endswith("0000.part") or order[-1] == order[-2]:  # that one would be missed as the first
        put(journal, log, batch(3000))
        journal.recycle(journal.next_lsn)  # a checkpoint may have what waits for its group
        group = journal.take_group()
        assert group is not None
        group.run()
        journal.complete(group)
        order.append(group.part.file.path)
    put(journal, log, batch(100))
    commit(journal)
    assert read(disk).damage is None
    disk.remove(order[-1])
    assert read(disk).damage is not None


def test_and_that_it_is_an_older_copy_of_itself() -> None:
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    copies: dict[str, bytes] = {}
    told = 0
    for number in range(120):
        put(journal, log, batch(3000))
        group = journal.take_group()
        assert group is not None
        path = group.part.file.path
        is_first = group.position == HEADER_BLOCK
        before = disk.contents()[path]
        group.run()
        journal.complete(group)
        if is_first and journal.laps > 1:
            copies[path] = before
        if path in copies:
            old = disk.copy(Random(number))
            file = old.open(path, write=True)
            file.pwritev([copies[path]], 0)
            file.close()
            assert read(old).damage is not None, number
            told += 1
        if number % 5 == 4:
            journal.recycle(journal.next_lsn - 2)
    assert journal.laps > 20
    assert told > 90


def test_an_idle_mark_that_opens_a_part_says_nothing_of_it() -> None:
    """Only entries do: the mark in front speaks of them once there are some, also in a later group."""
    disk = CrashDisk()
    journal, log = start(disk), FakeLog(disk)
    while journal.laps < 2:
        put(journal, log, batch(100))
        commit(journal)
        journal.recycle(journal.next_lsn)
        mark = journal.take_idle_mark()
        assert mark is not None
        opened = mark.part.file.path if mark.position == HEADER_BLOCK else ""
        mark.run()
        journal.complete(mark)
    if opened:
        gone = disk.copy(Random(1))
        gone.remove(opened)
        assert read(gone).damage is None
    put(journal, log, batch(100))
    group = journal.take_group()
    assert group is not None
    group.run()
    journal.complete(group)
    disk.remove(group.part.file.path)
    assert read(disk).damage is not None


@pytest.mark.parametrize("odd", [0, 300])
@pytest.mark.parametrize("size", range(100, 2000, 100))
def test_no_mark_is_written_behind_the_end_of_its_part(size: int, odd: int) -> None:
    """Idle marks took the sector of the one that tells that the next part is in use: that made the file longer."""
    limits = replace(SMALL, total=256 * KIB, first_part=SMALL.first_part + odd, part=SMALL.part + odd)
    disk = CrashDisk()
    journal, log = start(disk, limits), FakeLog(disk)
    while journal.laps < 5:
        put(journal, log, batch(size))
        commit(journal)
        if journal._current.position + 1024 > journal._current.limit:
            for behind in (1, 0):  # two checkpoints of which the first began in front of the last entry
                journal.recycle(journal.next_lsn - behind)
                mark = journal.take_idle_mark()
                if mark is not None:
                    mark.run()
                    journal.complete(mark)
    sizes = {path: len(content) for path, content in disk.contents().items() if path.endswith(".part")}
    assert all(content in (limits.first_part, 2 * limits.first_part, limits.part) for content in sizes.values()), sizes
    assert read(disk).damage is None
