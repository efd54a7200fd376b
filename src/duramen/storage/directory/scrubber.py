"""The scrubber: re-reads sealed segments against their seals in the background, slowly, and says what has changed.

A *round* goes over every sealed segment once. `take` gives the next few as a job, as many bytes as the rate allows
since the last one; `ScrubJob.run` reads them without leaving them in the page cache; `complete` records what was found.
Segments that are deleted or replaced meanwhile are passed over. Where a round stands is kept in a file
(`checkpoint/scrub_progress.py`); what that says of damage is read again first after a start.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import LogKey
from duramen.page_cache import room_for
from duramen.ports import Disk, File
from duramen.storage.checkpoint.scrub_progress import NO_KEY, ScrubProgress, read_progress, write_progress
from duramen.storage.files.atomic import read_file
from duramen.storage.log.log import Log
from duramen.storage.segment.corruption import Damage, Findings, damage_of, indexed_positions, offsets_between
from duramen.storage.segment.segment import INDEX, LOG, SEAL, Segment
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal

FIRST_SCRUB_DELAY_MS = 60_000
"""From the start of a node to the first job: a start has other things to read."""
PROGRESS_INTERVAL_MS = 10_000
"""Between two writes of the progress file."""
MOST_ELAPSED_MS = 2_000
"""A job is never larger than the rate allows in this time, however late the last one was."""
LOGS_PER_JOB = 1_000
"""Logs looked at for one job: most have nothing sealed."""
_READ_BYTES = 4 * BLOCK_BYTES
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""What opening a file says of the process or of the machine, and not of the file."""


class ScrubPiece(NamedTuple):
    """Bytes start..end of one segment, start at a block."""

    log: Log
    segment: Segment
    start: int
    end: int


@dataclass(slots=True)
class ScrubJob:
    """Checks some pieces. `run` on any thread, then `Scrubber.complete` or `fail` on the owner's.

    progress: after this job; is_due: to be written down even if nothing is found. left: pieces for another job, because
    no file could be opened.
    """

    disk: Disk
    path: str
    pieces: list[ScrubPiece]
    progress: ScrubProgress
    is_due: bool
    ends_round: bool
    found: list[tuple[ScrubPiece, Damage]] = field(default_factory=list)
    checked: int = 0
    left: list[ScrubPiece] = field(default_factory=list)

    def run(self) -> None:
        """Read and compare; what cannot be read is a finding, too."""
        for number, piece in enumerate(self.pieces):
            try:
                self._check(piece)
            except FileNotFoundError:
                continue  # deleted or replaced since it was taken
            except CorruptLogError as error:
                self.found.append((piece, damage_of(error)))
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self.left = self.pieces[number:]
                    return
                path = piece.segment.path
                self.found.append((piece, Damage(path, piece.start, piece.end, -1, -1, f"it cannot be read: {error}")))
        if self.is_due or self.found:
            with suppress(OSError):  # it may be lost, findings may not
                write_progress(self.disk, self.path, self.progress, [damage for _, damage in self.found])

    def _check(self, piece: ScrubPiece) -> None:
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

    def _compare(self, piece: ScrubPiece, file: File, seal: Seal) -> None:
        start: int | None = None
        # Whole blocks: the piece may be of a segment that ended elsewhere, before a compaction.
        end = min(-(-piece.end // BLOCK_BYTES) * BLOCK_BYTES, seal.length)
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

    def _differs(self, piece: ScrubPiece, file: File, start: int, end: int) -> None:
        self.found.append((piece, self._located(piece, file, start, end, "the bytes differ from the seal")))

    def _located(self, piece: ScrubPiece, file: File, start: int, end: int, what: str) -> Damage:
        segment = piece.segment
        size = file.size()
        bounds = (segment.base_offset, segment.next_offset)
        positions = indexed_positions(self.disk, segment.path_of(INDEX), bounds, size)
        first, last = offsets_between(file, positions, bounds, size, start, end)
        return Damage(segment.path, start, end, first, last, what)


class Scrubber:
    """The rounds of one directory. Loop thread only.

    bytes_per_second: 0 means never. interval_ms: from the beginning of a round to that of the next.
    bytes, rounds: since the directory was opened; round_bytes, started_ms: of the round under way or the last one.
    ended_ms: when a round ended last since then. on_round: told when one has ended.
    """

    first_delay_ms: ClassVar[int] = FIRST_SCRUB_DELAY_MS
    progress_interval_ms: ClassVar[int] = PROGRESS_INTERVAL_MS
    """Of every scrubber; a simulated node does not live long enough for these."""

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
        self.ended_ms: int | None = None
        self.on_round: Callable[[], None] = lambda: None
        self._doubted: list[Damage] = []
        self._left: list[ScrubPiece] = []
        self._known: ScrubProgress | None = None
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

    def take_job(self, logs: Mapping[LogKey, Log], now_ms: int) -> ScrubJob | None:
        """The next job, about once a second; None when it is not time, or the last job has not ended."""
        if self._job is not None or not self.bytes_per_second:
            return None
        if self._taken_ms is None:
            self._taken_ms = now_ms + self.first_delay_ms  # the first call is at the start
            self._written_ms = now_ms
            self._load(now_ms)
        elapsed = now_ms - self._taken_ms
        if elapsed <= 0:
            if -elapsed > self.first_delay_ms:
                self._taken_ms = now_ms  # the clock went back
            return None
        budget = max(BLOCK_BYTES, self.bytes_per_second * min(elapsed, MOST_ELAPSED_MS) // 1000)
        if self._left or self._doubted:
            self._taken_ms = now_ms
            pieces, self._left = self._left or self._choose_doubted(logs, budget), []
            if pieces:
                standing = self._standing() if self._waiting is None else self._progress(0)
                self._job = ScrubJob(self._disk, self._path, pieces, standing, is_due=False, ends_round=False)
                return self._job
        if self._waiting is None and not self._begin(logs, now_ms):
            return None
        self._taken_ms = now_ms
        pieces = self._choose(logs, budget)
        ends = not self._segments and not self._waiting
        is_due = ends or now_ms - self._written_ms >= self.progress_interval_ms
        if is_due:
            self._written_ms = now_ms
        progress = self._progress(sum(piece.end - piece.start for piece in pieces))
        self._job = ScrubJob(self._disk, self._path, pieces, progress, is_due, ends)
        return self._job

    def _load(self, now_ms: int) -> None:
        """What the last process left: where its round stood, and what it knew to be damaged."""
        with suppress(OSError, StorageError):
            self._known = read_progress(self._disk, self._path)
        if self._known is not None:
            self._doubted = list(self._known.known)
            if self._known.started_ms > now_ms:
                self._known = None  # the clock went back
            else:
                self.started_ms, self.round_bytes = self._known.started_ms, self._known.bytes

    def _choose_doubted(self, logs: Mapping[LogKey, Log], budget: int) -> list[ScrubPiece]:
        """Places that were damaged when the last process looked, where a sealed segment still has them."""
        pieces: list[ScrubPiece] = []
        there = {segment.path: (log, segment) for log in logs.values() for segment in log.segments if segment.sealed}
        while self._doubted and budget > 0:
            damage = self._doubted.pop()
            stem, _, suffix = damage.path.rpartition(".")
            found = there.get(f"{stem}{LOG}")
            if found is None:
                continue
            start, end = (damage.start, damage.end) if f".{suffix}" == LOG else (0, 0)
            start -= start % BLOCK_BYTES
            pieces.append(ScrubPiece(*found, start, min(end, found[1].size)))
            budget -= end - start
        return pieces

    def _standing(self) -> ScrubProgress:
        """The progress of a job that does not move the round."""
        known = self._known or ScrubProgress(self.started_ms or 0, self.round_bytes, NO_KEY, 0, 0)
        return known._replace(known=tuple(dict.fromkeys((*self._doubted, *self._findings.known.values()))))

    def _begin(self, logs: Mapping[LogKey, Log], now_ms: int) -> bool:
        """Begin a round, or go on with the one the progress file tells of."""
        known, self._known = self._known, None
        if known is None or known.key == NO_KEY:
            if self.started_ms is not None and 0 <= now_ms - self.started_ms < self.interval_ms:
                return False
            known = ScrubProgress(now_ms, 0, NO_KEY, 0, 0)
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

    def _choose(self, logs: Mapping[LogKey, Log], budget: int) -> list[ScrubPiece]:
        pieces: list[ScrubPiece] = []
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
            pieces.append(ScrubPiece(log, segment, self._position, end))
            budget -= end - self._position
            self._position = end
        while self._segments and (not self._segments[0][1].sealed or self._position >= self._segments[0][1].size):
            del self._segments[0]
            self._position = 0
        return pieces

    def _progress(self, more: int) -> ScrubProgress:
        started = self.started_ms or 0
        damage = tuple(self._findings.known.values())
        if self._segments:
            log, segment = self._segments[0]
            key = (log.topic_id, log.tp.partition)
            return ScrubProgress(started, self.round_bytes + more, key, segment.base_offset, self._position, damage)
        key = self._waiting[-1] if self._waiting else NO_KEY
        return ScrubProgress(started, self.round_bytes + more, key, 0, 0, damage)

    def complete(self, job: ScrubJob, logs: Mapping[LogKey, Log]) -> None:
        """The job has run: what it found counts where the segment is still the one that was looked at."""
        self._job = None
        self.bytes += job.checked
        if self._waiting is not None:  # else it was no part of a round
            self.round_bytes += job.checked
        for piece, damage in job.found:
            log = piece.log
            is_there = logs.get((log.topic_id, log.tp.partition)) is log
            if is_there and any(segment is piece.segment for segment in log.segments):
                self._findings.add(damage)
        self._left = job.left
        if job.ends_round and not job.left:
            self._waiting = None
            self.rounds += 1
            self.ended_ms = self._taken_ms
            self.on_round()

    def fail(self, error: BaseException) -> None:
        """The job itself failed: the next one goes on behind it."""
        self._job = None


def read_neutral(file: File, length: int, position: int) -> memoryview:
    """Exactly these bytes of a sealed segment; memory stays as it was. CorruptLogError when too few."""
    room = room_for(length)
    count = file.read_cold(room, position, settled=True)
    if count < length:
        raise CorruptLogError(file.path, position + count, position + length, "the file is too short")
    return room[:length]
