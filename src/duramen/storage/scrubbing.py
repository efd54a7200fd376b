"""The scrubber: re-reads sealed segments against their seals in the background, slowly, and says what has changed.

A *round* goes over every sealed segment once. `take` gives the next few as a job, as many bytes as the rate allows
since the last one; `ScrubJob.run` reads them without leaving them in the page cache; `complete` records what was found.
Segments that are deleted or replaced meanwhile are passed over. Where a round stands is kept in a file that may be
lost: then a round begins anew.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoints import read_file
from duramen.storage.damage import Damage, Findings, damage_of, offsets_between
from duramen.storage.index import decode_offset_index
from duramen.storage.log import Log
from duramen.storage.recovery_plan import LogKey
from duramen.storage.seal import BLOCK_BYTES, Seal, decode_seal
from duramen.storage.segment import INDEX, SEAL, Segment
from duramen.wire.checksum import crc32c

PROGRESS = "duramen-scrub"
FIRST_SCRUB_DELAY_MS = 60_000
"""From the start of a node to the first job: a start has other things to read."""
PROGRESS_INTERVAL_MS = 10_000
"""Between two writes of the progress file."""
MOST_ELAPSED_MS = 2_000
"""A job is never larger than the rate allows in this time, however late the last one was."""
LOGS_PER_JOB = 1_000
"""Logs looked at for one job: most have nothing sealed."""
_READ_BYTES = 4 * BLOCK_BYTES


class Progress(NamedTuple):
    """Where a round stands. key, base_offset, position: of the next block; a key of nothing: between two rounds."""

    started_ms: int
    bytes: int
    key: LogKey
    base_offset: int
    position: int


NO_KEY: LogKey = (b"", 0)


class Piece(NamedTuple):
    """Bytes start..end of one segment, start at a block."""

    log: Log
    segment: Segment
    start: int
    end: int


@dataclass(slots=True)
class ScrubJob:
    """Checks some pieces. `run` on any thread, then `Scrubber.complete` or `fail` on the owner's."""

    disk: Disk
    path: str
    pieces: list[Piece]
    progress: Progress | None
    ends_round: bool
    found: list[tuple[Piece, Damage]] = field(default_factory=list)
    checked: int = 0

    def run(self) -> None:
        """Read and compare; what cannot be read is a finding, too."""
        for piece in self.pieces:
            try:
                self._check(piece)
            except FileNotFoundError:
                continue  # deleted or replaced since it was taken
            except CorruptLogError as error:
                self.found.append((piece, damage_of(error)))
            except OSError as error:
                path = piece.segment.path
                self.found.append((piece, Damage(path, piece.start, piece.end, -1, -1, f"it cannot be read: {error}")))
        if self.progress is not None:
            with suppress(OSError):  # it may be lost, findings may not
                self._write(self.progress)

    def _check(self, piece: Piece) -> None:
        segment = piece.segment
        seal_path = segment.path_of(SEAL)
        content = read_file(self.disk, seal_path)
        if content is None:
            return
        try:
            seal = decode_seal(content, seal_path)
        except StorageError as error:
            self.found.append((piece, Damage(seal_path, 0, len(content), -1, -1, str(error))))
            return
        file = self.disk.open(segment.path)
        try:
            size = file.size()
            if size != seal.length:
                what = f"it has {size} bytes, {seal.length} were sealed"
                start = min(size, seal.length)
                self.found.append((piece, self._located(piece, file, start, max(size, seal.length), what)))
                return
            self._compare(piece, file, seal)
        finally:
            file.close()

    def _compare(self, piece: Piece, file: File, seal: Seal) -> None:
        start: int | None = None
        end = min(piece.end, seal.length)
        for position in range(piece.start, end, _READ_BYTES):
            data = read_neutral(file, min(_READ_BYTES, end - position), position)
            for inside in range(0, len(data), BLOCK_BYTES):
                at = position + inside
                bad = crc32c(data[inside : inside + BLOCK_BYTES]) != seal.checksums[at // BLOCK_BYTES]
                if bad and start is None:
                    start = at
                elif not bad and start is not None:
                    self._differs(piece, file, start, at)
                    start = None
            self.checked += len(data)
        if start is not None:
            self._differs(piece, file, start, end)

    def _differs(self, piece: Piece, file: File, start: int, end: int) -> None:
        self.found.append((piece, self._located(piece, file, start, end, "the bytes differ from the seal")))

    def _located(self, piece: Piece, file: File, start: int, end: int, what: str) -> Damage:
        segment = piece.segment
        content = read_file(self.disk, segment.path_of(INDEX))
        size = file.size()
        bounds = (segment.base_offset, segment.next_offset)
        index = None if content is None else decode_offset_index(content, size, bounds[1] - bounds[0])
        first, last = offsets_between(file, index, bounds, size, start, end)
        return Damage(segment.path, start, end, first, last, what)

    def _write(self, progress: Progress) -> None:
        """Replace the progress file; not synced, for it may be lost."""
        path = posixpath.join(self.path, PROGRESS)
        file = self.disk.open(path + ".tmp", create=True, write=True)
        try:
            file.truncate(0)
            file.pwritev([encode_progress(progress)], 0)
        finally:
            file.close()
        self.disk.rename(path + ".tmp", path)


class Scrubber:
    """The rounds of one directory. Loop thread only.

    bytes_per_second: 0 means never. interval_ms: from the beginning of a round to that of the next.
    bytes, rounds: since the directory was opened; round_bytes, started_ms: of the round under way or the last one.
    """

    def __init__(self, disk: Disk, path: str, findings: Findings, bytes_per_second: int, interval_ms: int) -> None:
        self._disk = disk
        self._path = path
        self._findings = findings
        self.bytes_per_second = bytes_per_second
        self.interval_ms = interval_ms
        self.bytes = 0
        self.rounds = 0
        self.round_bytes = 0
        self.started_ms: int | None = None
        self._job: ScrubJob | None = None
        self._waiting: list[LogKey] | None = None
        self._segments: list[tuple[Log, Segment]] = []
        self._position = 0
        self._taken_ms: int | None = None
        self._written_ms = 0

    @property
    def under_way(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._waiting is not None

    def take(self, logs: Mapping[LogKey, Log], now_ms: int) -> ScrubJob | None:
        """The next job, about once a second; None when it is not time, or the last job has not ended."""
        if self._job is not None or not self.bytes_per_second:
            return None
        if self._taken_ms is None:
            self._taken_ms = now_ms + FIRST_SCRUB_DELAY_MS  # the first call is at the start
            self._written_ms = now_ms
        elapsed = now_ms - self._taken_ms
        if elapsed <= 0:
            if -elapsed > FIRST_SCRUB_DELAY_MS:
                self._taken_ms = now_ms  # the clock went back
            return None
        if self._waiting is None and not self._begin(logs, now_ms):
            return None
        self._taken_ms = now_ms
        budget = max(BLOCK_BYTES, self.bytes_per_second * min(elapsed, MOST_ELAPSED_MS) // 1000)
        pieces = self._choose(logs, budget)
        ends = not self._segments and not self._waiting
        progress = None
        if ends or now_ms - self._written_ms >= PROGRESS_INTERVAL_MS:
            self._written_ms = now_ms
            progress = self._progress(sum(piece.end - piece.start for piece in pieces))
        self._job = ScrubJob(self._disk, self._path, pieces, progress, ends)
        return self._job

    def _begin(self, logs: Mapping[LogKey, Log], now_ms: int) -> bool:
        """Begin a round, or go on with the one the progress file tells of."""
        known: Progress | None = None
        if self.started_ms is None:
            known = self._read_progress()
            if known is not None and known.started_ms <= now_ms:
                self.started_ms, self.round_bytes = known.started_ms, known.bytes
        if known is None or known.key == NO_KEY or known.started_ms > now_ms:
            if self.started_ms is not None and 0 <= now_ms - self.started_ms < self.interval_ms:
                return False
            known = Progress(now_ms, 0, NO_KEY, 0, 0)
            self.started_ms, self.round_bytes = now_ms, 0
        self._waiting = sorted((key for key in logs if key >= known.key), reverse=True)
        self._position = 0
        if self._waiting and self._waiting[-1] == known.key:
            log = logs[self._waiting.pop()]
            left = [(log, segment) for segment in log.segments if segment.base_offset >= known.base_offset]
            self._segments = left
            if left and left[0][1].base_offset == known.base_offset and known.position < left[0][1].size:
                self._position = known.position - known.position % BLOCK_BYTES
        return True

    def _read_progress(self) -> Progress | None:
        try:
            content = read_file(self._disk, posixpath.join(self._path, PROGRESS))
        except OSError:
            return None
        return None if content is None else decode_progress(content)

    def _choose(self, logs: Mapping[LogKey, Log], budget: int) -> list[Piece]:
        pieces: list[Piece] = []
        looked = 0
        waiting = self._waiting or []
        while budget > 0 and looked < LOGS_PER_JOB:
            if not self._segments:
                if not waiting:
                    break
                log = logs.get(waiting.pop())
                looked += 1
                self._segments = [] if log is None else [(log, segment) for segment in log.segments]
                continue
            log, segment = self._segments[0]
            if not segment.sealed or segment is log.active or self._position >= segment.size:
                del self._segments[0]
                self._position = 0
                continue
            end = min(segment.size, self._position + -(-budget // BLOCK_BYTES) * BLOCK_BYTES)
            pieces.append(Piece(log, segment, self._position, end))
            budget -= end - self._position
            self._position = end
        while self._segments and (not self._segments[0][1].sealed or self._position >= self._segments[0][1].size):
            del self._segments[0]
            self._position = 0
        return pieces

    def _progress(self, more: int) -> Progress:
        started = self.started_ms or 0
        if self._segments:
            log, segment = self._segments[0]
            key = (log.topic_id, log.tp.partition)
            return Progress(started, self.round_bytes + more, key, segment.base_offset, self._position)
        key = self._waiting[-1] if self._waiting else NO_KEY
        return Progress(started, self.round_bytes + more, key, 0, 0)

    def complete(self, job: ScrubJob, logs: Mapping[LogKey, Log]) -> None:
        """The job has run: what it found counts where the segment is still the one that was looked at."""
        self._job = None
        self.bytes += job.checked
        self.round_bytes += job.checked
        for piece, damage in job.found:
            log = piece.log
            is_there = logs.get((log.topic_id, log.tp.partition)) is log
            if is_there and any(segment is piece.segment for segment in log.segments):
                self._findings.add(damage)
        if job.ends_round:
            self._waiting = None
            self.rounds += 1

    def fail(self, error: BaseException) -> None:
        """The job itself failed: the next one goes on behind it."""
        self._job = None


def read_neutral(file: File, length: int, position: int) -> memoryview:
    """Exactly these bytes; pages that were not in memory before are dropped again. CorruptLogError when too few."""
    buffer = memoryview(bytearray(length))
    if file.pread_nowait(buffer, position) == length:
        return buffer
    data = file.pread(length, position)
    file.drop_cache(position, length)
    if len(data) != length:
        raise CorruptLogError(file.path, position + len(data), position + length, "the file is too short")
    return memoryview(data)


def encode_progress(progress: Progress) -> bytes:
    """One line and its CRC-32C."""
    topic_id, partition = progress.key
    body = (
        f"duramen-scrub 1 {progress.started_ms} {progress.bytes} {topic_id.hex() or '-'} {partition} "
        f"{progress.base_offset} {progress.position}\n"
    ).encode()
    return body + f"crc {crc32c(body):08x}\n".encode()


def decode_progress(content: bytes) -> Progress | None:
    """Inverse of `encode_progress`; None when it is damaged."""
    body, separator, tail = content.rpartition(b"crc ")
    if not separator or tail.strip() != f"{crc32c(body):08x}".encode():
        return None
    words = body.decode("ascii").split()
    if len(words) != 8 or words[:2] != ["duramen-scrub", "1"]:
        return None
    topic_id = b"" if words[4] == "-" else bytes.fromhex(words[4])
    numbers = [int(words[n]) for n in (2, 3, 5, 6, 7)]
    return Progress(numbers[0], numbers[1], (topic_id, numbers[2]), numbers[3], numbers[4])
