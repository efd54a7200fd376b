"""Everything that is done to a log directory, in steps; which one is next, and with what, is drawn from the seed."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from random import Random
from typing import cast

from tests.crash.lives_cycle import Cycle
from tests.crash.promises import LogPromise, require, view_of
from tests.crash.session import NOW, SmallSegments, topic_id
from tests.worlds.log_bench import max_timestamp_offset, offset_for_timestamp

from duramen.errors import CorruptLogError, FencedDirectoryError, KafkaError, StorageError
from duramen.sim.world.disk import DiskCall
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.log.follower import is_empty
from duramen.storage.log.log import Log

TOPICS = 4
"""So many are there at once at most, and 200 in all: their numbers are ids."""
SIZES = (90, 200, 600, 1500, 2900)
LARGE = (*SIZES, 7000, 20_000)
"""The largest go to the segments at once (SETTINGS.bypass_bytes)."""
PRODUCERS = (3, 5)
STEPS: dict[str, int] = {
    "make_topic": 1,
    "delete_topic": 1,
    "change_durability": 1,
    "change_retention": 1,
    "raise_epoch": 1,
    "append": 4,
    "append_some": 5,
    "follow_some": 3,
    "begin_log_anew": 1,
    "cut_end": 1,
    "raise_start": 1,
    "roll": 1,
    "read_back": 1,
    "lease": 1,
    "look_up_time": 1,
    "take_group": 2,
    "end_group": 2,
    "commit_some": 6,
    "go_on_with_checkpoint": 2,
    "checkpoint_some": 3,
    "keep_house_some": 3,
    "compact_some": 3,
    "break_or_mend_disk": 1,
}
"""How often each is drawn, by the name of its method."""
FAULTS = ("no space", "some no space", "no files", "failing sync")


class Steps(Cycle):
    """The directory of one life, and what can be done to it. weights: as STEPS."""

    weights: Mapping[str, int] = STEPS

    def steps(self, count: int) -> bool:
        """So many steps, drawn; False when the directory was fenced on the way."""
        names, weights = list(self.weights), list(self.weights.values())
        for _ in range(count):
            step = self.dice.choices(names, weights)[0]
            self.trace.append(step)
            try:
                getattr(self, step)()
            except (KafkaError, StorageError, OSError) as error:
                self.trace.append(f"  {error!r}"[:160])
                if self.directory.journal.failed is not None:
                    self.met["fenced"] += 1
                    self.require_soundness()
                    return False
                told = isinstance(error, (KafkaError, NoRoomError)) or self.is_faulty
                if isinstance(error, CorruptLogError) or not told:
                    raise
        self.require_soundness()
        return True

    def require_soundness(self) -> None:
        """Where the disk had no fault since the start, the engine has met none; a refusal may fence (see below)."""
        directory = self.directory
        failed = directory.journal.failed
        if self.faults == self.faults_before:
            require(failed is None or isinstance(failed, KafkaError), f"fenced for nothing: {failed!r}")
            require(not directory.cleaner.uncleanable, f"not compacted: {directory.cleaner.uncleanable}")

    @property
    def faults(self) -> int:
        """How many errors the disk has had."""
        return sum(self.met[f"fault: {kind}"] for kind in FAULTS)

    def nothing_under_way(self) -> None:
        """As after a start."""
        super().nothing_under_way()
        self.faults_before = self.faults

    def _some(self, *, compacted: bool | None = None) -> tuple[Log, LogPromise] | None:
        """A log that nobody wants to delete."""
        there = [
            (self.directory.logs[each, 0], promise)
            for each, promise in self.promises.items()
            if (each, 0) in self.directory.logs and not promise.delete_asked and compacted in (None, promise.compacted)
        ]
        return self.dice.choice(there) if there else None

    def producers_go_on(self, log: Log) -> None:
        """Behind what the log knows of them."""
        for producer in PRODUCERS:
            known = log.producers.get(producer)
            self._sequences[log.topic_id, producer] = known.last_sequence + 1 if known else 0

    # ---- topics

    def make_topic(self) -> None:
        """A new one, often under the name of one that was deleted."""
        there = {log.tp.topic for log in self.directory.logs.values()}
        if self.next_topic > 200 or len(there) >= TOPICS:
            return
        number = self.next_topic
        self.next_topic += 1
        kind = self.dice.choice(["stable", "stable", "page-cache", "compacted"])
        old = sorted({promise.tp.topic for promise in self.promises.values()} - there)
        again = bool(old) and self.dice.random() < 0.7
        name = self.dice.choice(old) if again else f"topic{number}"
        try:
            self.create(number, stable=kind != "page-cache", compacted=kind == "compacted", name=name)
        except (StorageError, KafkaError, OSError):
            if (topic_id(number), 0) not in self.directory.logs:
                self.promises[topic_id(number)].delete_asked = True
            raise
        self.met["topics made"] += 1
        self.met["topics made under an old name"] += again

    def delete_topic(self) -> None:
        """One of several."""
        some = self._some()
        if some is not None and len(self.directory.logs) > 1 and self.dice.random() < 0.5:
            self.delete(number_of(some[0]))
            self.met["topics deleted"] += 1

    def change_durability(self) -> None:
        """From stable to page-cache, or back."""
        some = self._some(compacted=False)
        if some is None or some[1].cut_asked is not None or some[1].anew is not None or self.dice.random() < 0.5:
            return
        log, promise = some
        try:
            self.configure(number_of(log), stable=not promise.stable)
        except FencedDirectoryError:
            raise
        except (KafkaError, OSError, StorageError) as error:
            self.directory.journal.fail(None, error)  # as the engine does: it cannot say which of the two it is
            raise
        self.met["durability changed"] += 1

    def change_retention(self) -> None:
        """By bytes and by time."""
        some = self._some(compacted=False)
        if some is not None:
            config = cast(SmallSegments, some[0].config)
            config.retention_bytes = self.dice.choice([-1, 3000, 8000])
            config.retention_ms = self.dice.choice([-1, -1, 5000])

    def raise_epoch(self) -> None:
        """A new leader. Of a page-cache log that is no promise: the epoch may begin in what power takes."""
        some = self._some()
        if some is None or self.dice.random() < 0.5:
            return
        log, promise = some
        epoch = log.epochs.latest + self.dice.choice([1, 1, 3])
        if promise.stable:
            self.epoch(number_of(log), epoch)
        else:
            log.assign_epoch(epoch)
        self.met["epochs"] += 1

    # ---- records

    def append(self) -> None:
        """A batch, of a producer or of nobody. One that is refused has changed nothing."""
        some = self._some()
        if some is None:
            return
        log, promise = some
        size = self.dice.choice(LARGE if self.dice.random() < 0.3 else SIZES)
        producer = self.dice.choice((-1, *PRODUCERS))
        key, base = (log.topic_id, producer), log.end_offset
        sequence = self._sequences.get(key, 0)
        try:
            self.put(
                number_of(log),
                size,
                records=self.dice.choice([1, 1, 3]),
                producer=producer,
                tombstone=promise.compacted and self.dice.random() < 0.2,
                timeless=self.dice.random() < 0.1,
            )
        except (KafkaError, OSError, StorageError):
            require(log.end_offset == base, f"{log.tp}: a batch was refused, and the log ends behind it")
            self._sequences[key] = sequence
            promise.queued[base].pop()
            if not promise.queued[base]:
                del promise.queued[base]
            self.met["appends refused"] += 1
            raise
        self.met["batches"] += 1

    def append_some(self) -> None:
        """A few batches."""
        for _ in range(self.dice.randrange(1, 8)):
            self.append()

    def follow(self) -> None:
        """A batch of a leader, which may have offsets no more that were in front of it; or one that holds the start."""
        some = self._some()
        if some is None:
            return
        log, promise = some
        room = log.end_offset - log.active.base_offset if is_empty(log) else 0
        gap = -room if room and self.dice.random() < 0.8 else self.dice.choice([1, 1, 5, 300])
        base, end, told = log.end_offset + gap, log.end_offset, len(promise.gaps)
        try:
            self.put(number_of(log), self.dice.choice(SIZES), records=max(self.dice.choice([1, 3]), 1 - gap), gap=gap)
        except (KafkaError, OSError, StorageError):
            require(log.end_offset == end, f"{log.tp}: a batch was refused, and the log ends behind it")
            if len(promise.gaps) > told:
                promise.queued[base].pop()
                if not promise.queued[base]:
                    del promise.queued[base]
            self.met["appends refused"] += 1
            raise
        self.met["batches behind gaps" if gap > 0 else "batches that hold the start"] += 1

    def follow_some(self) -> None:
        """A few batches, some of them of other sizes and producers, behind no gap."""
        for _ in range(self.dice.randrange(1, 5)):
            self.follow() if self.dice.random() < 0.6 else self.append()

    def begin_log_anew(self) -> None:
        """Nothing of a log stays; then it is led in another epoch, mostly."""
        some = self._some()
        if some is None or some[1].anew is not None or some[1].cut_asked is not None or self.dice.random() < 0.4:
            return
        log, promise = some
        end, epoch = log.end_offset, log.epochs.latest
        places = [end, end + 1, end + 40, self.dice.choice(log.segments).base_offset, self.dice.randrange(end + 1)]
        offset = self.dice.choice(places)
        before = self.dice.choice([0, 2])
        self.begin_anew(number_of(log), offset, max(0, offset - before) if before else None)
        self.met["logs begun anew"] += 1
        if self.dice.random() < 0.7:
            if promise.stable:
                self.epoch(number_of(log), epoch + 1)
            else:
                log.assign_epoch(epoch + 1)

    def cut_end(self) -> None:
        """A truncation, when nothing waits: what was not acknowledged before a cut would be so after it."""
        some = self._some(compacted=False)
        if some is None or some[1].cut_asked is not None or some[1].anew is not None or self.dice.random() < 0.6:
            return
        log, promise = some
        low = max(log.start_offset, log.segments[0].base_offset)
        if log.end_offset <= low:
            return
        offset = self.dice.randrange(low, log.end_offset + 1)
        for _ in range(20):
            self.take_group()
            self.end_group()
        if self._waiting:
            return
        before = promise.cuts_asked, promise.cut_asked
        try:
            self.truncate(number_of(log), offset)
        except OSError as error:
            self.directory.journal.fail(None, error)  # memory may be cut, and the journal knows nothing of it
            raise
        except KafkaError:
            promise.cuts_asked, promise.cut_asked = before
            raise
        promise.start_asked = max(promise.start_asked, promise.start)  # it stays, where the cut does not come to be
        promise.start = min(promise.start, log.end_offset)
        self.met["truncations"] += 1

    def rebuilt(self, log: Log) -> None:
        """They go on."""
        self.producers_go_on(log)

    def raise_start(self) -> None:
        """The records below an offset are deleted."""
        some = self._some(compacted=False)
        if some is None or self.dice.random() < 0.5:
            return
        log = some[0]
        if log.durable_end > log.start_offset:
            self.advance_start(number_of(log), self.dice.randrange(log.start_offset, log.durable_end + 1))
            self.met["starts raised"] += 1

    def roll(self) -> None:
        """A new segment."""
        some = self._some()
        if some is not None and some[0].active.size and some[0].active.dormant is None:
            some[0].roll()
            self.met["rolls"] += 1

    def read_back(self) -> None:
        """A log, whole: exactly what was written and is left."""
        some = self._some(compacted=False)
        if some is not None and some[0].pending_truncation is None:
            log, promise = some
            left = promise.history(log.start_offset, log.end_offset)
            require(dict(view_of(log).batches) == left, f"{log.tp}: what is read is not what was written")
            self.met["logs read"] += 1

    def lease(self) -> None:
        """Hold what is behind an offset back from retention, or let it go."""
        some = self._some()
        if self.leases and self.dice.random() < 0.5:
            self.leases.pop()[1].release()
        elif some is not None:
            log = some[0]
            offset = self.dice.randrange(log.start_offset, log.end_offset + 1)
            self.leases.append((log, log.lease(offset, self.now + self.dice.randrange(1, 5000))))
            self.met["leases"] += 1

    def look_up_time(self) -> None:
        """By index, or, where it was lost, by a look at the records."""
        some = self._some()
        if some is not None and some[0].pending_truncation is None:
            log = some[0]
            offset_for_timestamp(log, NOW + self.dice.randrange(0, self.now - NOW + log.end_offset + 2), log.end_offset)
            max_timestamp_offset(log, log.end_offset)
            self.met["times looked up"] += 1

    # ---- the disk

    def break_or_mend_disk(self) -> None:
        """From now on it is full, lacks files or loses what is synced; or no more."""
        if self.dice.random() < 0.7:
            return
        if self.disk.fault is not None:
            self.disk.fault = None
            self.directory.journal.no_room = None
            return
        kind = self.dice.choice(FAULTS)
        random = Random(self.dice.random())

        def fault(call: DiskCall) -> OSError | None:
            error = fault_of(kind, call, random)
            if error is not None:
                self.met[f"fault: {kind}"] += 1
            return error

        self.disk.fault = fault


def number_of(log: Log) -> int:
    """The number of its topic."""
    return log.topic_id[-1]


def fault_of(kind: str, call: DiskCall, random: Random) -> OSError | None:
    """The error that such a disk has for a call. A journal is laid out beforehand: its parts need no space."""
    if kind == "failing sync":
        fails = call.operation in ("sync", "sync_directory") and random.random() < 0.05
        return OSError(errno.EIO, "a bad sector", call.path) if fails else None
    if kind == "no files":
        fails = call.operation == "open" and random.random() < 0.5
        return OSError(errno.EMFILE, "too many open files", call.path) if fails else None
    if call.operation not in ("pwritev", "rename", "preallocate") or (kind != "no space" and random.random() < 0.7):
        return None
    if call.operation == "pwritev" and "journal" in call.path and ".new" not in call.path:
        return None
    if call.operation == "rename" and random.random() < 0.9:
        return None
    return OSError(errno.ENOSPC, "no space", call.path)
