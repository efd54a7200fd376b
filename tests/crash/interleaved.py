"""Lives whose jobs are interleaved at every disk call, with each other and with what the loop does.

    ending = live(7)

As in `lives.py` a seed decides everything. There a group of the journal, a checkpoint, a compaction's piece or a job of
maintenance runs from its beginning to its end; here each goes on a few disk calls at a time (`stepping.py`), so that
appends, rolls, truncations, deletions and other jobs come between any two of them, and a death in the midst of several.
So do reads of old data, the scrubber and look-ups of times, which are jobs too. The volume is full now and then
(`crowded.py`). The last line of a life is a checksum of all its disk calls and of who made them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from tests.crash.crowded import RESERVES, Crowded
from tests.crash.lives import Ending
from tests.crash.lives_steps import STEPS
from tests.crash.promises import LogPromise, require
from tests.crash.session import NOW, small, topic_id
from tests.crash.stepping import STRIDES, Job, SteppedDisk, Turns, stepped

from duramen.errors import CorruptLogError, DuramenError, KafkaError
from duramen.model import TopicPartition
from duramen.ports import FileSpan
from duramen.sim.world.disk import NodeDied
from duramen.sim.world.inode import PAGE
from duramen.storage.compaction.compaction_pass import CompactionPass
from duramen.storage.directory.scrubber import FIRST_SCRUB_DELAY_MS, ScrubJob
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.log.create import NewLog
from duramen.storage.log.durability import complete_sync, give_back_sync, take_sync
from duramen.storage.log.log import Log
from duramen.storage.read.read_plan import Pending
from duramen.storage.read.timestamp_lookup import Timestamped
from duramen.wire.batch import batches, parse_header

LANES = (
    "checkpoint",
    "cleaner",
    "cold",
    "creation",
    "flush",
    "housekeeping",
    "journal",
    "lookups",
    "producers",
    "scrub",
)
"""What jobs there are. Of "cold" and "lookups" several run at once; creations, flushes and checkpoints take turns."""
COVERED = (
    *(f"mixed: {lane}" for lane in LANES),
    "cold reads",
    "died amid several jobs",
    "reserves made",
    "scrubs",
    "syncs of the page cache",
    "times looked up beside",
    "volumes filled",
)
"""What has to be met in sixteen lives, by the names of `Ending.met`. mixed: jobs between whose calls others were."""
RARE = (
    *(f"died amid: {lane}" for lane in LANES),
    "compactions side by side",
    "reads that a cut or a deletion came before",
    "reserves given up",
    "reserves given up for a group",
    "room found again",
    "starts without room",
)
"""What has to be met in a few hundred. died amid: jobs that had made a call, and were not over."""
SNAPSHOT_BYTES = (0, 4000, 16 << 20)
"""After so many bytes a checkpoint writes down what is known of producers. A life has one of these."""
SLICE_LOGS = (1, 8)
"""So many logs has a job of a checkpoint; a life has one of these, and one of each of the following."""
SETTINGS = {
    "hot_window_bytes": (3000, 30_000, -1),
    "journal_max_entries": (300, 250_000),
    "reserve_bytes": RESERVES,
    "dirty_max_bytes": (10_000, 64 << 20),
    "scrub_interval_ms": (1,),
}
WEIGHTS = {
    **STEPS,
    "make_topic": 3,
    "take_group": 4,
    "end_group": 8,
    "go_on_with_checkpoint": 8,
    "go_on": 6,
    "read_cold": 4,
    "look_up_time_beside": 2,
    "scrub": 2,
    "sync_page_cache": 3,
    "fill_disk": 1,
}
"""How often each step is drawn."""
CLEANERS = 2
"""Lanes of compaction (`log.cleaner.threads`)."""
READS = 4
"""So many cold reads and look-ups are under way at most."""


class Read(NamedTuple):
    """A reader's job. cuts: of its log, when it began; faults: of the disk, until then. end: checks what it brought."""

    job: Job
    log: Log
    cuts: int
    faults: int
    end: Callable[[], None]


class Ahead(NamedTuple):
    """A job on the lane of checkpoints that is none. failed: what becomes of an error of the disk; it may raise it."""

    lane: str
    run: Callable[[], None]
    done: Callable[[], None]
    failed: Callable[[OSError], None]


class Stepped(Crowded):
    """A life whose jobs go on in steps. turns: who goes on. lanes: jobs under way, or over and not yet accounted for.

    ahead: a job on the lane of checkpoints. excused: the last error was of a job that may have met a fault.
    """

    def __init__(self, seed: int, turns: Turns, weights: Mapping[str, int]) -> None:
        self.turns = turns
        self.weights = weights
        self.excused = False
        super().__init__(seed, partial(SteppedDisk, turns))
        self.settings = self.settings._replace(**{name: self.dice.choice(some) for name, some in SETTINGS.items()})

    def nothing_under_way(self) -> None:
        """As after a start."""
        super().nothing_under_way()
        self.lanes: dict[str, Job] = {}
        self.cleaners: list[tuple[CompactionPass | None, Callable[[], object] | None]] = [(None, None)] * CLEANERS
        self.cleaner = 0
        self.ahead: Ahead | None = None

    # ---- jobs

    def has_run(self, lane: str, work: Callable[[], object]) -> bool:
        """As far as it goes in one turn."""
        self.excused = False
        if self.dice.random() < 0.3:
            self.turns.go_on()
        number = f"{lane} {self.cleaner}" if lane == "cleaner" else lane
        job = self.lanes.get(number) or self.lanes.setdefault(number, self.turns.begin(lane, work))
        if not job.advance(self.dice.choice(STRIDES)):
            return False
        del self.lanes[number]
        self._has_ended(job)
        return True

    def _has_ended(self, job: Job) -> None:
        """A job is over. What it raised is raised."""
        self.met[f"mixed: {job.name}"] += job.mixed
        self.excused = job.error is not None and job.tainted
        if job.error is not None:
            raise job.error

    @property
    def is_faulty(self) -> bool:
        """An error may be older than the disk's mending: a job has kept it."""
        return super().is_faulty or self.excused

    def break_or_mend_disk(self) -> None:
        """A job that is under way may have met what is mended now."""
        was_faulty = self.disk.fault is not None
        no_room = self.directory.journal.no_room
        super().break_or_mend_disk()
        self.directory.journal.no_room = no_room  # until a checkpoint has found some
        if was_faulty:
            self.mended()

    def mended(self) -> None:
        """What is under way may have met what was."""
        for job in self.unaccounted:
            job.tainted = True

    @property
    def unaccounted(self) -> list[Job]:
        """All jobs that are under way, or over and nobody has heard of it."""
        return list(self.lanes.values())

    def go_on(self) -> None:
        """Some job."""
        self.turns.go_on()

    def commit_some(self) -> None:
        """In more steps, for each does less."""
        super().commit_some()
        super().commit_some()

    def checkpoint_some(self) -> None:
        """See commit_some."""
        super().checkpoint_some()
        super().checkpoint_some()

    def keep_house_some(self) -> None:
        """See commit_some."""
        super().keep_house_some()
        super().keep_house_some()

    def compact_some(self) -> None:
        """See commit_some."""
        super().compact_some()
        super().compact_some()

    def go_on_with_compaction(self) -> None:
        """Of one of the lanes."""
        self._compact(self.dice.randrange(CLEANERS))

    def _compact(self, lane: int) -> None:
        self.cleaner = lane
        self.cleaning, self.cleaning_job = self.cleaners[lane]
        try:
            super().go_on_with_compaction()
        finally:
            self.cleaners[lane] = self.cleaning, self.cleaning_job
            self.cleaning = self.cleaning_job = None
        self.met["compactions side by side"] += all(job is not None for _, job in self.cleaners)

    def go_on_with_maintenance(self) -> None:
        """The lane does not wait for the loop, nor the loop, which looks once a second, for the lane."""
        if self.jobs and self.ran and self.dice.random() < 0.5:
            self.run_maintenance()
        elif self.jobs and self.dice.random() < 0.05:
            self.take_maintenance()
        else:
            super().go_on_with_maintenance()

    # ---- the lane of checkpoints

    @property
    def is_waiting(self) -> bool:
        """Whether a checkpoint's job is on the lane, and has not run to its end."""
        return self.round is not None and not self.round[1]

    def go_on_with_checkpoint(self) -> None:
        """Jobs of the lane run in the order in which they were taken, and are accounted for in it."""
        if self.ahead is not None and (self.is_waiting or self.dice.random() < 0.5):
            self._go_on_ahead(self.ahead)
        else:
            super().go_on_with_checkpoint()

    def _go_on_ahead(self, ahead: Ahead) -> None:
        failed = None
        try:
            if not self.has_run(ahead.lane, ahead.run):
                return
        except OSError as error:
            failed = error
        self.ahead = None
        if self.round is not None and not self.is_waiting:
            super().go_on_with_checkpoint()
        if failed is None:
            ahead.done()
        else:
            ahead.failed(failed)

    def make_topic(self) -> None:
        """One at a time, on the lane of checkpoints: what is under way there goes by the names of old logs."""
        if self.ahead is None and not self.is_waiting:
            super().make_topic()

    def create(self, number: int, *, stable: bool = True, compacted: bool = False, name: str = "") -> None:  # type: ignore[override]
        """Begin to make a topic: its files are made behind the syncs of others that had its name."""
        tp = TopicPartition(name, 0)
        promise = self.promises[topic_id(number)] = LogPromise(tp, stable, compacted)
        config = small(stable=stable, compacted=compacted, segment_bytes=self.segment_bytes)
        creation = self.directory.take_creation([NewLog(tp, topic_id(number), config)])
        for problem in creation.refused.values():
            raise problem

        def created() -> None:
            promise.created = True

        def done() -> None:
            try:
                self.directory.complete_creation(creation)
            finally:
                promise.delete_asked = (topic_id(number), 0) not in self.directory.logs
            self._later(created)
            self.epoch(number, 1)

        def failed(error: OSError) -> None:
            promise.delete_asked = True
            if not isinstance(error, NoRoomError):
                self.directory.journal.fail(None, error)
            raise error

        self.ahead = Ahead("creation", creation.run, done, failed)

    def sync_page_cache(self) -> None:
        """Begin to sync a log that is not journaled, as `flush.messages` asks for, or go on."""
        some = self._some(compacted=False)
        if self.ahead is not None or self.is_waiting:
            self.go_on_with_checkpoint()
        elif some is not None and not some[0].stable and (sync := take_sync(some[0])) is not None:
            log = some[0]

            def is_gone() -> bool:
                return self.directory.logs.get((log.topic_id, 0)) is not log

            def done() -> None:
                if not is_gone():
                    complete_sync(log, sync)
                    self.note_sync(log, sync)
                    self.met["syncs of the page cache"] += 1

            def failed(error: OSError) -> None:
                if not is_gone() and isinstance(error, NoRoomError):
                    give_back_sync(log, sync)
                elif not is_gone():
                    self.directory.journal.fail(None, error)
                    raise error

            self.ahead = Ahead("flush", sync.run, done, failed)


class Interleaved(Stepped):
    """With those who only read. reads: theirs; scrubbing: the scrubber's, by a clock of its own."""

    def nothing_under_way(self) -> None:
        """As after a start."""
        super().nothing_under_way()
        self.reads: list[Read] = []
        self.scrubbing: ScrubJob | None = None
        self.scrub_ms = NOW

    @property
    def unaccounted(self) -> list[Job]:
        """Theirs, too."""
        return [*super().unaccounted, *(read.job for read in self.reads)]

    def _begin_read(self, lane: str, work: Callable[[], object], log: Log, end: Callable[[], None]) -> None:
        self.reads.append(Read(self.turns.begin(lane, work), log, log.truncations, self.faults, end))

    def _go_on_reading(self) -> None:
        """One that is under way; what it brings has to be what was written."""
        read = self.dice.choice(self.reads)
        if read.job.advance(self.dice.choice(STRIDES)):
            self._end_read(read)

    def _end_read(self, read: Read) -> None:
        self.reads.remove(read)
        is_cut = read.log.truncations != read.cuts or self.directory.logs.get((read.log.topic_id, 0)) is not read.log
        try:
            self._has_ended(read.job)
        except (OSError, DuramenError) as error:
            if is_cut:
                self.met["reads that a cut or a deletion came before"] += 1
            elif isinstance(error, CorruptLogError) or read.faults == self.faults:
                raise
            return
        if not is_cut:
            read.end()

    def read_cold(self) -> None:
        """Begin to read what is not in memory, or go on with it."""
        some = self._some()
        if len(self.reads) == READS or (self.reads and self.dice.random() < 0.7):
            self._go_on_reading()
        elif some is not None and some[0].pending_truncation is None and some[0].end_offset > some[0].start_offset:
            self._read(*some)

    def _read(self, log: Log, promise: LogPromise) -> None:
        for segment in log.segments:
            self.directory.hot.forget(segment, 0, segment.size)
        for _, inode in self.disk.names.walk():
            if self.dice.random() < 0.7:
                inode.drop(0, len(inode.cache) + PAGE)
        offset = self.dice.randrange(log.start_offset, log.end_offset)
        written = None if promise.compacted else promise.history(log.start_offset, log.end_offset)

        def check(data: memoryview) -> None:
            for position, header in batches(data):
                told = bytes(data[position : position + header.size])
                as_written = written is None or written.get(header.base_offset) == told
                require(as_written, f"{log.tp}: the batch at {header.base_offset} is read as it was never written")
            self.met["cold reads"] += 1

        def end(part: Pending) -> None:
            part.complete()
            check(memoryview(b"") if part.found is None else part.found.data)

        found = log.read(offset, self.dice.choice((200, 3000, 100_000)), log.end_offset, at_least_one=True)
        for part in found.parts:
            if isinstance(part, Pending):
                self._begin_read("cold", part.run, log, partial(end, part))
            elif isinstance(part, FileSpan):
                check(memoryview(part.file.pread(part.length, part.position)))
            else:
                check(memoryview(part))

    def look_up_time_beside(self) -> None:
        """Begin to look for a record by its time. Which one it is follows from how `put` stamps them."""
        some = self._some(compacted=False)
        if some is None or some[0].pending_truncation is not None or len(self.reads) == READS:
            return
        log, promise = some
        wanted = NOW + self.dice.randrange(0, self.now - NOW + log.end_offset + 2)
        first = log.start_offset
        written = promise.history(first, log.end_offset)
        lookup = log.time_lookup(wanted, log.end_offset)
        told: list[Timestamped | None] = []

        def end() -> None:
            [found] = told
            stamped = (
                offset
                for base, header in ((base, parse_header(data)) for base, data in sorted(written.items()))
                if header.max_timestamp >= 0
                for offset in range(max(base, first), header.next_offset)
                if header.max_timestamp - (header.next_offset - 1 - offset) >= wanted
            )
            expected = next(stamped, None)
            if found is not None or lookup.rest < 0:
                same = expected == (None if found is None else found.offset)
                require(same, f"{log.tp}: at {wanted} is {found}, expected {expected}")
            self.met["times looked up beside"] += 1

        self._begin_read("lookups", lambda: told.append(lookup.run()), log, end)

    def scrub(self) -> None:
        """Begin to re-read what is sealed, or go on with it. It is as it was sealed."""
        directory = self.directory
        if self.scrubbing is None:
            self.scrub_ms += 1 + FIRST_SCRUB_DELAY_MS
            self.scrubbing = directory.take_scrub(self.scrub_ms)
            return
        try:
            if not self.has_run("scrub", self.scrubbing.run):
                return
        except (OSError, DuramenError) as error:
            if isinstance(error, CorruptLogError) or not self.is_faulty:
                raise
            directory.scrubber.fail(error)
        else:
            directory.complete_scrub(self.scrubbing)
            self.met["scrubs"] += 1
        self.scrubbing = None

    def require_soundness(self) -> None:
        """Nor is anything damaged; of a log that was cut the scrubber may have seen a half of that."""
        super().require_soundness()
        cut = tuple(f"{log.path}/" for log in self.directory.logs.values() if self.promises[log.topic_id].cuts_asked)
        found = [damage for damage in self.directory.findings.known.values() if not damage.path.startswith(cut)]
        require(self.tampered or not found, f"damage was found: {found}")

    # ---- ends

    def steps(self, count: int) -> bool:
        """More of them, for each does less."""
        return super().steps(2 * count)

    def _stop(self) -> None:
        """What is under way ends first. A job that met a disk at fault has failed, and the process with it."""
        try:
            for read in list(self.reads):
                read.job.finish()
                self._end_read(read)
            while self.scrubbing is not None:
                self.scrub()
            while self.ahead is not None:
                self._go_on_ahead(self.ahead)
            for lane in range(CLEANERS):
                while self.cleaners[lane][1] is not None:
                    self._compact(lane)
            super()._stop()
        except (OSError, KafkaError):
            if not self.is_faulty:
                raise
            self.disk.kill()

    def _power_on(self) -> None:
        """Nobody who is under way has outlived the node."""
        amid = [job for job in self.turns.under_way if job.has_begun]
        for job in amid:
            self.met[f"died amid: {job.name}"] += 1
        self.met["died amid several jobs"] += len(amid) > 1
        self.turns.finish()
        super()._power_on()


def live(seed: int, weights: Mapping[str, int] = WEIGHTS) -> Ending:
    """The life of a seed. weights: how often each step is drawn."""
    random = Random(seed * 6011 + 3)
    snapshot_bytes = patch("duramen.storage.log.durability.SNAPSHOT_BYTES", random.choice(SNAPSHOT_BYTES))
    slice_logs = patch("duramen.storage.directory.log_directory.SLICE_LOGS", random.choice(SLICE_LOGS))
    with stepped(random) as turns, snapshot_bytes, slice_logs:
        life = Interleaved(seed, turns, weights)
        violation = where = ""
        how = "broken"
        try:
            how = life.run()
        except (Exception, NodeDied) as error:  # noqa: BLE001 - whatever it is, it is a finding
            where = traceback.format_exc()
            violation = f"{type(error).__name__}: {error}"
        life.trace.append(f"history {turns.history:08x}")
        return Ending(seed, how, violation, life.met, life.trace, where)
