"""One compaction pass off the loop: the map of last offsets, and the copies of segments without what it supersedes.

Both are generators that do a bounded piece of work between two yields, so that whoever drives them can throttle them,
and give up between any two pieces. They read sealed segments only, through their seals, and write files that nobody
else knows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from duramen.errors import CorruptLogError, ErrorCode, KafkaError
from duramen.ports import Disk, File
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.transactions import CleanedTransactions
from duramen.storage.files.atomic import read_file
from duramen.storage.read.timestamp_lookup import DECODED_BYTES
from duramen.storage.segment.corruption import as_corruption
from duramen.storage.segment.seal import compute_seal, read_sides
from duramen.storage.segment.segment import INDEX, SEAL, TIME_INDEX, TXN_INDEX, Segment
from duramen.wire.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header, read_marker
from duramen.wire.batch_filter import LATEST_HORIZON, Span, delete_horizon, empty_batch, filtered_batch, spans
from duramen.wire.compression import decompress
from duramen.wire.seal import Seal, decode_seal

SYNC_BYTES = 4 << 20
"""A copy is synced whenever this much was written, so that no single sync holds up the journal's."""
RESIDENCE_BYTES = 128 * 1024
"""Piece by which reading finds out what was in memory before it came."""
PIECE_RECORDS = 250
"""Records looked at between two yields: about a millisecond during which the loop may have to wait for this thread."""
MAX_BYTES = 2**31 - 1
"""Most bytes of a segment, as in Kafka: an index holds positions in four bytes."""


class CleaningRules(NamedTuple):
    """What a pass goes by. now_ms: when a copy begins; retention_ms: delete.retention.ms.

    seen_from: every record from there up to the end of the map was in it, or in the map of a pass that ended within the
    same batch, right before this one. expired_ms: delete horizons up to then have passed. horizons: whether tombstones
    that have no time to go yet get one. batches: by producer id, the last offsets of the batches its state consists of.
    epochs: of the producers that have a state without batches, the epoch and the offset of the last marker, -1 where
    that is not known: their markers are all that is known of them.
    """

    now_ms: int
    expired_ms: int
    retention_ms: int
    seen_from: int
    batches: Mapping[int, frozenset[int]]
    epochs: Mapping[int, tuple[int, int]]
    horizons: bool = True

    @property
    def horizon(self) -> int:
        """When (ms) tombstones that this pass meets first may go."""
        return min(LATEST_HORIZON, self.now_ms + self.retention_ms)

    @property
    def without_horizons(self) -> CleaningRules:
        """The same, but tombstones that have no time to go yet do not get one."""
        return self._replace(horizons=False)

    def needs(self, header: BatchHeader) -> bool:
        """Whether a producer's state is in this data batch."""
        return header.producer_id >= 0 and header.last_offset in self.batches.get(header.producer_id, ())

    def needs_marker(self, header: BatchHeader) -> bool:
        """Whether a producer's epoch is known from this marker only. Of those before it none is needed: a producer may
        end a thousand transactions a second.
        """
        epoch, last_marker = self.epochs.get(header.producer_id, (-1, -1))
        return epoch == header.producer_epoch and header.base_offset >= last_marker


class RewriteSource:
    """The batches of one sealed segment, checked against the seal and their CRCs."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        self._path = segment.path
        self._base = segment.base_offset
        self._size = segment.size
        self._seal: Seal | None = None
        self._file: File = disk.open(self._path)
        try:
            data = read_file(disk, segment.path_of(SEAL))
            if data is not None:
                self._seal = decode_seal(data, segment.path_of(SEAL))
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def chunks(self, length: int) -> Iterator[list[tuple[memoryview, BatchHeader, bool]]]:
        """Whole batches, about `length` bytes of them at a time: (bytes, header, whether it is the segment's last).

        CorruptLogError when they are not what was sealed, or the disk cannot read them; OSError.
        """
        position = 0
        while position < self._size:
            data = self._read(position, min(self._size, position + length))
            if len(data) >= HEADER_SIZE:
                size = parse_header(data).size
                if size > len(data):
                    data = self._read(position, min(self._size, position + size))
            found = []
            inside = 0
            while inside + HEADER_SIZE <= len(data):
                header = parse_header(data, inside)
                if inside + header.size > len(data):
                    break
                view = data[inside : inside + header.size]
                if not check_crc(view, header):
                    raise self._damaged(position + inside, header.size, "the CRC differs")
                inside += header.size
                found.append((view, header, position + inside == self._size))
            if not found:
                raise self._damaged(position, self._size - position, "no batch starts here")
            position += inside
            yield found

    def _damaged(self, position: int, length: int, reason: str) -> CorruptLogError:
        return CorruptLogError(self._path, position, position + length, reason, self._base)

    def _read(self, start: int, end: int) -> memoryview:
        seal = self._seal
        first, last = (start, end) if seal is None else seal.block_range(start, end)
        buffer = memoryview(bytearray(last - first))
        for inside in range(0, len(buffer), RESIDENCE_BYTES):
            self._fill(buffer[inside : inside + RESIDENCE_BYTES], first + inside)
        if seal is not None:
            seal.check(buffer, first, self._path, self._base)
        return buffer[start - first : end - first]

    def _fill(self, piece: memoryview, at: int) -> None:
        try:
            if self._file.pread_nowait(piece, at) == len(piece):
                return
            data = self._file.pread(len(piece), at)
            self._file.drop_cache(at, len(piece))
        except OSError as error:
            raise as_corruption(error, self._path, at, at + len(piece), self._base) from error
        if len(data) != len(piece):
            raise self._damaged(at, len(piece), "the file is too short")
        piece[:] = data


def build_map(
    disk: Disk, segments: Sequence[Segment], first_dirty: int, transactions: CleanedTransactions, offsets: OffsetMap,
    chunk_bytes: int,
) -> Generator[int, None, None]:  # fmt: skip
    """Put the last offset of every key from `first_dirty` on into the map, until it is full; yields bytes read.

    The map goes to the end of a batch, or, when not even one batch fits, to the last record that did.
    """
    for segment in segments:
        source = RewriteSource(disk, segment)
        try:
            for chunk in source.chunks(chunk_bytes):
                moved = looked = 0
                for view, header, _ in chunk:
                    moved += len(view)
                    if header.is_control:
                        transactions.is_superfluous(header, read_marker(view, header))
                    elif not transactions.is_aborted(header) and header.last_offset >= first_dirty:
                        reached = _map_batch(view, header, first_dirty, offsets)
                        if reached < header.last_offset:
                            if offsets.latest < first_dirty:
                                offsets.latest, offsets.begun = reached, header.base_offset
                            return
                    if header.last_offset >= first_dirty:
                        offsets.latest = header.last_offset
                    looked += header.count
                    if looked > PIECE_RECORDS:
                        yield moved
                        moved = looked = 0
                yield moved
        finally:
            source.close()
        offsets.latest = max(offsets.latest, segment.next_offset - 1)


def _map_batch(view: memoryview, header: BatchHeader, first_dirty: int, offsets: OffsetMap) -> int:
    """The offset up to which the batch's keys are in the map: its last, unless the map is full."""
    reached = first_dirty - 1
    try:
        for span in spans(_payload(view, header), header):
            offset = header.base_offset + span.offset_delta
            if offset >= first_dirty:
                if span.key is not None and not offsets.put(span.key, offset):
                    return reached
                reached = offset
    except KafkaError as error:
        raise UncleanableBatchError(header.base_offset, error) from error
    return header.last_offset


class UncleanableBatchError(KafkaError):
    """The batch's bytes are as they were stored, and a pass cannot look into them; offset: its first.

    It inflates to more than a pass takes into memory, or has other records than its header says: nobody looked at them
    while the topic was not compacted.
    """

    def __init__(self, offset: int, error: KafkaError) -> None:
        what = f"inflates to more than {DECODED_BYTES} bytes"
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            what = f"cannot be read ({error})"
        super().__init__(error.code, f"the batch at offset {offset} {what}: what follows is not compacted")
        self.offset = offset


def _payload(view: memoryview, header: BatchHeader) -> bytes:
    return decompress(header.compression, view[HEADER_SIZE:], DECODED_BYTES)


class SegmentCopy:
    """The copy of some neighbouring segments into one: `steps` makes it, `target` is its segment.

    changed: something was left out or rewritten. bytes_in, bytes_out: so far. left: a batch is as it was for want of
    room in the segment: what is superseded may be in it, so nothing that comes behind it may get a delete horizon.
    owed: base offset of the first batch that has none for that reason; -1: of none.
    """

    def __init__(
        self, disk: Disk, group: Sequence[Segment], target: Segment, offsets: OffsetMap, rules: CleaningRules,
        transactions: CleanedTransactions, *, chunk_bytes: int, index_interval_bytes: int,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._group = group
        self._offsets = offsets
        self._rules = rules
        self._transactions = transactions
        self._chunk_bytes = chunk_bytes
        self._interval = index_interval_bytes
        self.target = target
        self.changed = len(group) > 1
        self.left = False
        self.owed = -1
        self._given = -1
        self._rest = sum(segment.size for segment in group)
        self.bytes_in = 0
        self.bytes_out = 0

    def steps(self) -> Generator[int, None, None]:
        """Write and sync the target's files; yields bytes read and written. OSError, CorruptLogError, KafkaError."""
        target = self.target
        target.activate()
        self._transactions.index = []
        file = self._disk.open(target.path, create=True, write=True)
        try:
            file.truncate(0)
            unsynced = 0
            for out in self._batches():
                written = sum(map(len, out))
                if written:
                    file.pwritev(out, target.size - written)
                unsynced += written
                self.bytes_out += written
                if unsynced >= SYNC_BYTES:
                    file.sync()
                    unsynced = 0
                yield written
            latest = max(segment.latest_ms for segment in self._group)
            if target.max_timestamp < 0 <= latest:  # as old as what it is made of: a start asks the file
                file.backdate(latest)
            file.sync()
            target.flushed = target.synced = target.size
            if self.changed:
                yield from self._sidecars(file)
        finally:
            file.close()

    def _batches(self) -> Iterator[list[bytearray | memoryview]]:
        """What is to be written next, already accounted for in the target."""
        for segment in self._group:
            source = RewriteSource(self._disk, segment)
            try:
                for chunk in source.chunks(self._chunk_bytes):
                    out: list[bytearray | memoryview] = []
                    looked = 0
                    for view, header, ends_segment in chunk:
                        self.bytes_in += len(view)
                        looked += header.count
                        # The last batch stays, if only as a header: it says where the segment ends.
                        kept = self._filter(view, header, last=ends_segment and segment is self._group[-1])
                        self._rest -= len(view)
                        if kept is not None and not self._fits(kept, view):
                            kept = view
                            self._leave()
                        if kept is not view:
                            self.changed = True
                        if kept is not None:
                            self.target.note(parse_header(kept), self.target.size, self._interval)
                            out.append(kept)
                        if looked > PIECE_RECORDS:
                            yield out
                            out = []
                            looked = 0
                    yield out
            finally:
                source.close()

    def _fits(self, kept: bytearray | memoryview, view: memoryview) -> bool:
        """Whether a batch may take the place of what it was made from: horizons and other compressors make it larger.

        What follows has to find room behind it, as it is.
        """
        return len(kept) <= len(view) or self.target.size + len(kept) + self._rest <= MAX_BYTES

    def _leave(self) -> None:
        self.left = True
        self._rules = self._rules.without_horizons
        if self.owed < 0:
            self.owed = self._given

    # -- one batch

    def _filter(self, view: memoryview, header: BatchHeader, *, last: bool) -> bytearray | memoryview | None:
        """What stays of a batch: itself, another one, or nothing."""
        self._given = -1
        try:
            if header.is_control:
                return self._filter_marker(view, header, last=last)
            return self._filter_data(view, header, last=last)
        except KafkaError as error:
            raise UncleanableBatchError(header.base_offset, error) from error

    def _filter_data(self, view: memoryview, header: BatchHeader, *, last: bool) -> bytearray | memoryview | None:
        needed = last or self._rules.needs(header)
        if self._transactions.is_aborted(header):
            return (empty_batch(header) if header.count else view) if needed else None
        if header.count == 0:
            return view if needed else None
        if header.base_offset > self._offsets.latest:
            return view
        payload = _payload(view, header)
        kept, oldest_tombstone = self._kept(payload, header)
        if not kept:
            return empty_batch(header) if needed else None
        # Their time to go begins when everything they supersede is removed: a map has to have had them.
        due = (
            delete_horizon(header) is None
            and self._rules.seen_from <= oldest_tombstone
            and header.last_offset <= self._offsets.latest
        )
        fresh = due and self._rules.horizons
        if fresh:
            self._given = header.base_offset
        elif due and self.owed < 0:
            self.owed = header.base_offset
        if len(kept) == header.count and not fresh:
            return view
        return filtered_batch(header, payload, kept, self._rules.horizon if fresh else None)

    def _filter_marker(self, view: memoryview, header: BatchHeader, *, last: bool) -> bytearray | memoryview | None:
        marker = read_marker(view, header)
        if not self._transactions.is_superfluous(header, marker):
            return view
        if header.count == 0:
            return view if last else None
        horizon = delete_horizon(header)
        if horizon is None:
            payload = _payload(view, header)
            return filtered_batch(header, payload, list(spans(payload, header)), self._rules.horizon)
        if horizon <= self._rules.expired_ms and not last and not self._rules.needs_marker(header):
            return None
        return view

    def _kept(self, payload: bytes, header: BatchHeader) -> tuple[list[Span], int]:
        """The records that stay, and the offset of the first tombstone among them (-1: none)."""
        latest, base, last_of = self._offsets.latest, header.base_offset, self._offsets.get
        horizon = delete_horizon(header)
        expired = horizon is not None and horizon <= self._rules.expired_ms
        kept: list[Span] = []
        oldest_tombstone = -1
        for span in spans(payload, header):
            offset = base + span.offset_delta
            # A record without a key, from before the topic was compacted, is superseded by nothing.
            if offset <= latest and span.key is not None:
                if offset < last_of(span.key) or (span.is_tombstone and expired):
                    continue
                if span.is_tombstone and oldest_tombstone < 0:
                    oldest_tombstone = offset
            kept.append(span)
        return kept, oldest_tombstone

    # -- beside the records

    def _sidecars(self, file: File) -> Iterator[int]:
        """Indexes, aborted transactions and the seal, all synced; what was written is read and checked once more."""
        target = self.target
        for path, _, data in target.pending_index_writes(final=True):
            self._write(path, data)
        aborted = target.encode_aborted(self._transactions.index)
        if aborted or any(self._disk.exists(segment.path_of(TXN_INDEX)) for segment in self._group):
            # Also an empty one: it takes the place of the old.
            self._write(target.path_of(TXN_INDEX), aborted)
        target.take_aborted(self._transactions.index)
        target.close_indexes()
        yield 0
        seal = compute_seal(file, target.size, target.base_offset, target.next_offset - 1)
        seal.sides = read_sides(self._disk, [target.path_of(suffix) for suffix in (INDEX, TIME_INDEX, TXN_INDEX)])
        self._write(target.path_of(SEAL), seal.encode())
        target.sealed = True
        self._disk.sync_directory(target.directory)
        yield 0

    def _write(self, path: str, data: bytes) -> None:
        file = self._disk.open(path, create=True, write=True)
        try:
            file.truncate(0)
            if data:
                file.pwritev([data], 0)
            file.sync()
        finally:
            file.close()
