"""One pass of compaction over one log: a sequence of jobs for a lane of its own, handed out one by one.

Between them everything may change: a log may be deleted or truncated, a lease be taken, the disk fail. Every step asks
again, and a pass that may not go on is given up; segments that it had replaced by then stay replaced. Groups of
segments are replaced from the oldest to the youngest, never one without those before it: otherwise a tombstone could go
before what it deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from duramen.errors import DuramenError
from duramen.ports import Disk
from duramen.storage.compaction.eligibility import Cleanable, groups, is_compacted
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.segment_rewrite import CleaningRules, SegmentCopy, build_map
from duramen.storage.compaction.transactions import CleanedTransactions
from duramen.storage.files.disk_full import NoRoomError, retriable_open
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.log.log import Log
from duramen.storage.segment.replacement import CLEANED, SWAP, drop_cleaned, remove_replaced, stage, unstage
from duramen.storage.segment.segment import Segment

CompactionJob = Callable[[], int]
"""Work for the lane; returns the bytes it read and wrote."""
Pieces = Generator[int, None, None]
Steps = Generator["CompactionJob | None", None, None]
"""What a pass does next; None: ask again a little later."""


class CleanerSettings(NamedTuple):
    """How compaction works. dedupe_bytes: of one pass's map of last offsets; io_bytes: read at a time.

    threads: passes at a time; 0 for none. bytes_per_second: over all of them, reading and writing.
    """

    threads: int = 1
    dedupe_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_bytes: int = 256 << 10
    bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


@dataclass(slots=True)
class CleanerStatistics:
    """What compaction has done since the start. max_dirty_ratio: as of the last look; last_pass_ms: wall clock."""

    passes: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_pass_ms: int = -1
    max_dirty_ratio: float = 0.0


class Noting(Protocol):
    """Who writes down what all passes share, until it is over."""

    over: bool


class PassOwner(Protocol):
    """What a pass asks of the directory's cleaner, and says to it."""

    journal: Journal
    statistics: CleanerStatistics
    noting: Noting | None

    @property
    def high_watermark(self) -> Callable[[Log], int]: ...
    def knows(self, log: Log) -> bool: ...
    def is_durable(self, lsn: int) -> bool: ...
    def bound(self, log: Log, now_ms: int) -> int: ...
    def seen_from(self, log: Log) -> int: ...
    def lateness(self, log: Log) -> int: ...
    def was_late(self, log: Log, late_ms: int) -> CompactionJob: ...
    def cleaned_to(self, log: Log, offsets: OffsetMap, owed: int) -> CompactionJob: ...
    def passed(self, now_ms: int) -> None: ...
    def failed(self, cleaning: CompactionPass, error: BaseException) -> None: ...
    def ended(self, cleaning: CompactionPass) -> None: ...


class CompactionPass:
    """One pass over one log."""

    def __init__(self, cleaner: PassOwner, work: Cleanable, settings: CleanerSettings, now_ms: int) -> None:
        self.log = work.log
        self.swapping = False
        """New files have been named `.swap`: from here to the end of step 5 the pass has to be finished."""
        self.leaving: tuple[int, ...] = ()
        """Base offsets of segments that a copy takes in, from the SWAP entry on until they are gone from the log."""
        self.over = False
        self.completed = False
        """The pass went through: the log's next pass begins behind it."""
        self.swaps = 0
        self._copy: Segment | None = None
        """Whose `.cleaned` files are there, or half there."""
        self._cleaner = cleaner
        self._work = work
        self._settings = settings
        self._now_ms = self._steady_ms = now_ms
        self._cuts = work.log.truncations
        self._finishing = False
        self._steps = self._pass()

    def next_job(self, now_ms: int, steady_ms: int | None = None) -> CompactionJob | None:
        """The next job for the lane, None when there is none now: the pass is `over`, or waits. OSError fences.

        steady_ms: by a clock that nobody sets; None: the wall clock is not set meanwhile.
        """
        self._now_ms = now_ms
        self._steady_ms = now_ms if steady_ms is None else steady_ms
        if self._abandoned():
            self.end()
            return None
        try:
            return next(self._steps)
        except StopIteration:
            self.end()
        except (OSError, DuramenError) as error:
            self.fail(error)
        return None

    def fail(self, error: BaseException) -> None:
        """The last job failed."""
        if not self.over and not self._abandoned():
            self._cleaner.failed(self, error)
        self.end()

    def end(self) -> None:
        """No more of it."""
        if not self.over:
            self.over = True
            self._steps.close()
            self._cleaner.ended(self)
            if self._copy is not None and self._cleaner.knows(self.log):
                with suppress(OSError):  # else the next start removes them
                    drop_cleaned(self.log.disk, self.log.path, self._copy.base_offset)

    def finish_swap(self) -> None:
        """The directory is about to be closed cleanly: bring a swap that has begun to its end, here, now. OSError."""
        self._finishing = True
        while self.swapping and not self.over:
            job = next(self._steps)
            if job is not None:
                job()
        self.end()

    def _abandoned(self) -> bool:
        """Whether the pass must not touch the log any more."""
        if not self._cleaner.knows(self.log):
            return True
        return not self.swapping and (self._cuts != self.log.truncations or not is_compacted(self.log))

    # ---- the pass ------------------------------------------------------------------------------------------------

    def _pass(self) -> Steps:
        work, log, settings = self._work, self.log, self._settings
        offsets = OffsetMap(
            settings.dedupe_bytes,
            settings.load_factor,
            max(0, work.end - work.first_dirty),
            log.topic_id,
        )
        aborted = [entry for segment in log.segments for entry in segment.aborted()]
        dirty_from = work.dirty[0].base_offset
        seen = CleanedTransactions(entry for entry in aborted if entry.last_offset >= dirty_from)
        disk = log.disk
        yield from _jobs(build_map(disk, work.dirty, work.first_dirty, seen, offsets, settings.io_bytes))
        if offsets.latest < work.first_dirty:
            return
        rules = self._rules(self._cleaner.seen_from(log))
        owed = -1
        transactions = CleanedTransactions(aborted)
        config = log.config
        inside = [segment for segment in work.segments if segment.base_offset <= offsets.latest]
        for group in groups(inside, config.segment_bytes, config.segment_index_bytes):
            target = Segment(disk, log.path, group[0].base_offset, log.open_files)
            target.staged = CLEANED
            self._copy = target
            rules = rules._replace(now_ms=self._now_ms)
            began_ms = self._steady_ms
            copy = SegmentCopy(
                disk, group, target, offsets, rules, transactions,
                chunk_bytes=settings.io_bytes, index_interval_bytes=config.index_interval_bytes,
            )  # fmt: skip
            yield from _jobs(copy.steps())
            if copy.left:
                rules = rules.without_horizons
            owed = copy.owed if owed < 0 else owed
            self._cleaner.statistics.bytes_read += copy.bytes_in
            self._cleaner.statistics.bytes_written += copy.bytes_out
            if copy.changed:
                # Noted first, and as much again for the swap: who dies in it leaves a copy that nobody saw begin.
                yield from self._note_late(2 * (self._steady_ms - began_ms))
                swapped = yield from self._swap(group, target)
                if not swapped:
                    return
                yield from self._note_late(self._steady_ms - began_ms)
            else:
                yield partial(_drop, disk, log.path, target.base_offset)
            self._copy = None
        if not rules.horizons and owed < 0:
            owed = offsets.begun
        yield from self._note(lambda: self._cleaner.cleaned_to(log, offsets, owed))
        self._cleaner.passed(self._now_ms)
        self.completed = True

    def _note(self, job: Callable[[], CompactionJob]) -> Steps:
        """Have a job run that writes what all passes share, when no other pass has one."""
        while self._cleaner.noting is not None and not self._cleaner.noting.over:
            yield None
        self._cleaner.noting = self
        yield job()
        self._cleaner.noting = None

    def _note_late(self, late_ms: int) -> Steps:
        """What a copy leaves out was there to be read so long behind its beginning. In whole seconds: seldom anew.

        The file has all compacted logs: it is not written for what every log is granted (`Cleaner.lateness`).
        """
        late_ms = -(-late_ms // 1000) * 1000
        if late_ms > self._cleaner.lateness(self.log):
            yield from self._note(lambda: self._cleaner.was_late(self.log, late_ms))

    def _rules(self, seen_from: int) -> CleaningRules:
        batches: dict[int, frozenset[int]] = {}
        epochs: dict[int, tuple[int, int]] = {}
        committed = self._cleaner.high_watermark(self.log)
        for producer in self.log.producers.active():
            if producer.batches:
                batches[producer.id] = frozenset(batch[3] for batch in producer.batches)
            else:
                # One that may still be cut off stands for nothing.
                epochs[producer.id] = producer.epoch, producer.last_marker if producer.last_marker < committed else -1
        expired_ms = self._now_ms - self._cleaner.lateness(self.log)
        return CleaningRules(self._now_ms, expired_ms, self.log.config.delete_retention_ms, seen_from, batches, epochs)

    def _swap(self, group: list[Segment], target: Segment) -> Generator[CompactionJob | None, None, bool]:
        """Put the copy in place; False when it may not be any more. See `segment/replacement.py` for the steps."""
        log = self.log
        if self._may_swap(group):
            log.journal.admit(0)
            end = group[-1].next_offset
            lsn = log.journal.append(EntryKind.SWAP, log, end, log.epochs.latest, target.base_offset, 0)
            self.leaving = tuple(segment.base_offset for segment in group[1:])
            while not self._cleaner.is_durable(lsn):
                yield None
        if not self._may_swap(group):
            self.leaving = ()
            yield partial(_drop, log.disk, log.path, target.base_offset)
            return False
        self.swapping = True
        self._copy = None
        yield from self._insist(partial(stage, log.disk, log.path, target.base_offset))
        while group[-1].next_offset > self._cleaner.bound(log, self._now_ms) and not self._finishing:
            yield None  # leased at the last moment; nobody holds a lease over a stop
        target.staged = SWAP
        log.replace_segments(group, target)
        replaced, self.leaving = self.leaving, ()
        yield from self._insist(partial(remove_replaced, log.disk, lambda: log.path, replaced))
        while not self._unstaged(target):
            yield None
        target.staged, target.unstaged = "", ()
        target.release_files()
        # The next pass writes beside these names: half of them without it would look like a step 3 that it began.
        yield from self._insist(lambda: log.disk.sync_directory(log.path))
        self.swapping = False
        self.swaps += 1
        return True

    def _insist(self, step: Callable[[], None]) -> Steps:
        """Have a step of a swap done, which can be repeated: again a little later where it found no room."""
        while not self._finishing:
            job = _Step(step)
            yield job
            if job.done:
                return
            yield None
        step()

    def _unstaged(self, target: Segment) -> bool:
        """Step 5, here, for the segment's names and what it takes for them change at once; False for want of room."""

        def renamed(suffix: str) -> None:
            target.unstaged = (*target.unstaged, suffix)

        try:
            unstage(self.log.disk, self.log.path, target.base_offset, renamed)
        except NoRoomError:
            if self._finishing:
                raise
            self._cleaner.journal.give_way()
            return False
        return True

    def _may_swap(self, group: list[Segment]) -> bool:
        """Whether the group is still there, whole, and nobody has laid hands on it."""
        segments = self.log.segments
        if group[0] not in segments:
            return False
        first = segments.index(group[0])
        if segments[first : first + len(group)] != group:
            return False
        return group[-1].next_offset <= self._cleaner.bound(self.log, self._now_ms)


def _jobs(steps: Pieces) -> Steps:
    """The pieces of a generator as jobs, until it ends."""
    over = False

    def step() -> int:
        nonlocal over
        try:
            return next(steps)
        except StopIteration:
            over = True
            return 0

    try:
        while not over:
            yield step
    finally:
        steps.close()


@dataclass(slots=True)
class _Step:
    """A job; done: it found room."""

    step: Callable[[], None]
    done: bool = False

    def __call__(self) -> int:
        with suppress(NoRoomError), retriable_open():
            self.step()
            self.done = True
        return 0


def _drop(disk: Disk, path: str, base: int) -> int:
    drop_cleaned(disk, path, base)
    return 0
