"""Bytes that changed or were never written: doubt is an error with a place, never an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.museum.exhibit import Replaced, exhibit, promise
from tests.museum.power import VALUES, acknowledge, cut, reopened, stored
from tests.worlds.partition_world import Bench, plain
from tests.worlds.storage_workload import FIRST, SmallSegments, append, checkpoint, commit, read_all, start

from duramen.errors import CorruptLogError, DuramenError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.journal import reader
from duramen.storage.journal.format import ALIGNMENT, ENTRY_SIZE, MARK_SIZE, EntryHeader, EntryKind, decode_entry
from duramen.storage.journal.reader import PartScan
from duramen.storage.log.truncation import truncate_log
from duramen.storage.read import read_plan
from duramen.storage.read.read_plan import ColdRead, ReadPlan
from duramen.storage.recovery import replay, startup
from duramen.wire.seal import Seal


def segment_path(bench: Bench) -> str:
    return bench.partition.log.active.path


def place_of(disk: CrashDisk, path: str, value: bytes) -> int:
    found = disk.contents()[path].find(value)
    assert found >= 0, "the value is in the file"
    return found


def at_rest(*values: bytes) -> tuple[Bench, dict[int, bytes]]:
    """A cleanly stopped node's disk with these values, opened by nobody; what was acknowledged."""
    bench = Bench()
    acknowledged = acknowledge(bench, *values)
    bench.store.close(clean=True)
    cut(bench.disk)
    return bench, acknowledged


LONG = tuple((b"%d " % number) * 500 for number in range(12))
WIDE = tuple((b"%d wide " % number) * 2500 for number in range(12))


def one_by_one(bench: Bench, offsets: Iterator[int] | range) -> dict[int, bytes | CorruptLogError | None]:
    """What a client gets that asks for each offset: the value, None for nothing, or the damage it is told of."""
    found: dict[int, bytes | CorruptLogError | None] = {}
    for offset in offsets:
        try:
            data = bench.bytes_from(offset, max_bytes=1)
        except CorruptLogError as error:
            found[offset] = error
        else:
            values = [value for value in (*LONG, *WIDE) if value in data]
            found[offset] = values[0] if values else (data or None)
    return found


def _unchecked(original: Callable[..., None]) -> Callable[..., None]:
    def check(*arguments: Any) -> None: ...

    return check


@exhibit(
    "nats-single-bit-error",
    source="https://github.com/nats-io/nats-server/issues/7549",
    guard="bytes from the disk are checked before they leave, against the seal or the batch's CRC",
    without=(
        Replaced(read_plan, "check_crc", lambda original: lambda view, header: True),
        Replaced(Seal, "check", _unchecked),
    ),
)
def single_bit() -> None:
    """One flipped bit in a stored block cost JetStream hundreds of thousands of acknowledged records."""
    bench, acknowledged = at_rest(*WIDE)
    path = segment_path(bench)
    bench.disk.damage(path, place_of(bench.disk, path, WIDE[6]) + 700, 0x04)
    bench = Bench(bench.disk, epoch=2)
    for offset, got in one_by_one(bench, range(len(WIDE))).items():
        if isinstance(got, CorruptLogError):
            promise(abs(offset - 6) <= 4 and path in str(got), "damage is reported within its 64 KiB, with the file")
        else:
            promise(got == acknowledged[offset] and offset != 6, f"offset {offset} is what was acknowledged")


def _as_if_it_were_the_end(original: Callable[..., ColdRead]) -> Callable[..., ColdRead]:
    def extract(plan: ReadPlan, *arguments: Any) -> ColdRead:
        try:
            return original(plan, *arguments)
        except CorruptLogError:
            return ColdRead(memoryview(b""), plan.end_offset, 0)

    return extract


@exhibit(
    "bookkeeper-no-such-entry",
    source="https://github.com/apache/bookkeeper/issues/2908",
    guard="unreadable bytes are an error of their own type and never an empty answer",
    without=Replaced(read_plan, "extract", _as_if_it_were_the_end),
)
def no_such_entry() -> None:
    """A bookie told a recovering client "no such entry" for one it could not read; the ledger was closed before it."""
    bench, _ = at_rest(*LONG)
    path = segment_path(bench)
    bench.disk.damage(path, place_of(bench.disk, path, LONG[7]) - 40, 0xFF)
    bench = Bench(bench.disk, epoch=2)
    for offset, got in one_by_one(bench, range(len(LONG))).items():
        promise(got is not None, f"offset {offset} exists, so nobody is told that there is nothing")


def _undamaged(original: Callable[..., Any]) -> Callable[..., Any]:
    def held_journal(*arguments: Any) -> Any:
        contents = original(*arguments)
        contents.damage = None
        return contents

    return held_journal


@exhibit(
    "damage-taken-for-the-end-of-the-journal",
    source="https://github.com/cockroachdb/pebble/issues/864",
    guard="every group records how far the journal was durable before it: a gap below that is damage, not a torn tail",
    without=Replaced(startup, "held_journal", _undamaged),
)
def damage_as_end() -> None:
    """RocksDB and Pebble stopped replaying a log at a bad checksum and carried on without what lay behind it."""
    bench = Bench()
    acknowledged = acknowledge(bench, *VALUES, *LONG)
    (part,) = [path for path in bench.disk.contents() if "journal" in path and LONG[2] in bench.disk.contents()[path]]
    bench.disk.damage(part, place_of(bench.disk, part, LONG[2]), 0x01)
    cut(bench.disk)
    try:
        bench = Bench(bench.disk, epoch=2)
    except CorruptLogError as error:
        promise(part in str(error), "the refusal names the damaged file")
        return
    promise(
        acknowledged.items() <= stored(bench).items(), "a start either has every acknowledged record or says why not"
    )


WHOLE_SECTORS = 3
"""A group of one record of the recycled part fills so many sectors to the last byte."""
RECORD = WHOLE_SECTORS * ALIGNMENT - MARK_SIZE - ENTRY_SIZE - 71
"""Bytes of its value; a batch has 71 beside it."""


class Recycled:
    """A log whose journal has begun to use a part again. acknowledged: what the log holds, by offset.

    The part's groups were of one record of the first use, then of another one and the truncation that took it away, and
    so on. All of that was truncated again since. The new use has begun with one group, as long as the first old one.
    """

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.directory = start(self.disk)
        config = SmallSegments(durability="stable", segment_bytes=1 << 20, index_interval_bytes=256)
        self.log = self.directory.create_log(TopicPartition("t", 0), FIRST, config)
        self.log.assign_epoch(1)
        commit(self.directory)
        self.acknowledged: dict[int, bytes] = {}
        first = self.put(b"first use")
        while (part := self.put(b"first use")) == first:
            pass
        current = part
        while current == part:
            append(self.log, b"taken away".ljust(RECORD))
            self.truncate(self.log.end_offset - 1)
            current = self.put(b"first use")
        self.truncate(0)
        while self.put(b"acknowledged") != part:
            checkpoint(self.directory)

    def put(self, word: bytes) -> str:
        """One record in a group of its own; returns the part's name."""
        value = word.ljust(RECORD)
        self.acknowledged[append(self.log, value)] = value
        group = self.directory.take_group()
        assert group is not None
        assert group.size == WHOLE_SECTORS * ALIGNMENT
        group.run()
        self.directory.journal.complete(group)
        return group.part.name

    def truncate(self, end: int) -> None:
        truncate_log(self.log, end)
        self.acknowledged = {offset: value for offset, value in self.acknowledged.items() if offset < end}
        commit(self.directory)

    def tear(self) -> None:
        """Of the write of one more group of two records, which nobody was told of, the first sectors arrive."""
        for _ in range(2):
            append(self.log, b"torn".ljust(RECORD))
        group = self.directory.take_group()
        assert group is not None
        group.part.file.pwritev([b"".join(group.buffers)[: WHOLE_SECTORS * ALIGNMENT]], group.position)
        group.part.file.sync()

    def after_a_power_cut(self) -> dict[int, bytes]:
        """What the next process reads; a refusal to start breaks the promise."""
        cut(self.disk)
        try:
            directory = start(self.disk)
        except DuramenError as error:
            promise(False, f"the node starts ({error})")
        (log,) = directory.logs.values()
        return read_all(log)


class _AnyLap:
    """Reads a part as if nothing told one lap from another: what is intact goes on, and is numbered as it comes."""

    def __init__(self) -> None:
        self.scan = PartScan()
        self.view = memoryview(b"")

    def entries(self, original: Callable[..., int]) -> Callable[..., int]:
        """For those of a group."""

        def scan_group(scan: PartScan, view: memoryview, position: int, stop: int, seed: int, part: int) -> int:
            self.scan, self.view = scan, view
            lap, before = scan.lap, scan.next_lsn - len(scan.entries)
            end = original(scan, view, position, stop, seed, part)
            while end != stop and (entry := decode_entry(view, end, seed)) is not None and entry.kind != EntryKind.MARK:
                scan.lap, scan.next_lsn = entry.lap, entry.lsn
                end = original(scan, view, end, stop, seed, part)
            scan.lap, scan.next_lsn = lap, before + len(scan.entries)
            return end

        return scan_group

    def marks(self, original: Callable[..., EntryHeader | None]) -> Callable[..., EntryHeader | None]:
        """For those that begin a group."""

        def decode(view: memoryview, position: int, seed: int) -> EntryHeader | None:
            entry = original(view, position, seed)
            if entry is None or entry.kind != EntryKind.MARK or view is not self.view:
                return entry
            return entry._replace(lap=self.scan.lap, lsn=self.scan.next_lsn)

        return decode


_ANY_LAP = _AnyLap()
_ENTRIES_OF_ANY_LAP = Replaced(reader, "_scan_group", _ANY_LAP.entries)


@exhibit(
    "an-old-lap-replayed",
    source="https://github.com/cockroachdb/pebble/pull/580",
    guard="each entry carries the lap of its recycled file and its number; a reader stops at a group or an entry of "
    "another lap or number",
    without=(_ENTRIES_OF_ANY_LAP, Replaced(reader, "decode_entry", _ANY_LAP.marks)),
    also=(_ENTRIES_OF_ANY_LAP,),
)
def old_lap() -> None:
    """What an earlier use had left in a recycled log file looked valid, and was replayed after a crash."""
    world = Recycled()
    there = world.after_a_power_cut()
    old = [offset for offset, value in there.items() if value.startswith(b"first use")]
    promise(old == [], f"no record of the part's earlier use is there again ({len(old)} of {len(there)} are)")
    promise(there == world.acknowledged, "the log is what was acknowledged")
    world = Recycled()
    world.tear()
    there = world.after_a_power_cut()
    promise(
        world.acknowledged.items() <= there.items(),
        "a truncation behind a torn group, of an earlier use, is not repeated",
    )


def _all_sound(original: Callable[..., Any]) -> Callable[..., Any]:
    def scan(*arguments: Any, **options: Any) -> Iterator[Any]:
        for position, header, _ in original(*arguments, **options):
            yield position, header, True

    return scan


@exhibit(
    "zeros-behind-a-crash",
    source="https://xfs.org/index.php/XFS_FAQ",
    guard="unsynced batches are accepted at a start only if they are intact",
    without=Replaced(replay, "scan", _all_sound),
)
def zeros() -> None:
    """A file system may keep a file's new length and lose its bytes: programs found zeros where their records were."""
    bench = Bench(duramen_ack_durability="page-cache")
    for value in LONG:
        bench.produce(plain(value))
    path = segment_path(bench)
    first = place_of(bench.disk, path, LONG[9])
    bench.disk.kill()
    content = bench.disk.contents()[path]
    for offset in range(first, first + 900):
        bench.disk.damage(path, offset, content[offset])
    bench.disk.power_on()
    bench = reopened(bench.disk, duramen_ack_durability="page-cache")
    for offset, got in one_by_one(bench, range(bench.partition.log_end_offset)).items():
        promise(got == LONG[offset], "what a start has accepted can be read")
