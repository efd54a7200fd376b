"""Random interleavings of everything a log directory does, with crashes anywhere and disks that are full or fail.

    python -m tests.crash.interleavings --seeds 1000

A life is some generations of one directory: opened, driven by random steps (jobs are taken, run and completed apart,
with other steps in between), ended by a kill, a power cut or a stop, opened again, perhaps after starts that die too.
After each the promises must hold (`promises.py`). The write paths open every state of a few scripts; this opens few
states of very many.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable
from random import Random
from typing import Any, cast

from tests.crash.promises import LogPromise, check_directory, require, view_of
from tests.crash.session import CLEANER, NOW, Session, open_directory, topic_id
from tests.crash.tape import TapeDisk

from duramen.errors import CorruptLogError, DuramenError, FencedDirectoryError, KafkaError, StorageError
from duramen.model import TopicId
from duramen.sim.disk import Call, CrashDisk, NodeDied
from duramen.storage.checkpointing import Checkpoint
from duramen.storage.cleaner import Cleaning, Job
from duramen.storage.journal import Group
from duramen.storage.leases import Lease
from duramen.storage.log import Log
from duramen.storage.no_room import NoRoomError
from duramen.wire.batch import parse_header

GENERATIONS = 4
MOST_TOPICS = 4
PRODUCERS = (3, 5)
SIZES = (90, 200, 600, 1500, 2900, 7000, 20_000)
"""Of batches: the last two bypass the journal."""
ENDS = ("cut_soon", "cut", "kill_soon", "kill", "stop")


class Interleaved(Session):
    """A session on a disk that crashes, in random steps."""

    def __init__(self, seed: int) -> None:
        self.choice = Random(seed * 7919 + 1)
        self.crashing = CrashDisk(Random(seed), torn=self.choice.random() < 0.7)
        super().__init__(seed, cast(TapeDisk, self.crashing))
        self.now = NOW
        self._next_topic = 1
        self._reset()

    def _reset(self) -> None:
        self._waiting = []
        self._group: Group | None = None
        self._checkpoint: Checkpoint | None = None
        self._synced = False
        self._jobs: list[Any] = []
        self._job_ran: list[BaseException | None] = []
        self._cleaning: Cleaning | None = None
        self._cleans: Job | None = None
        self._leases: list[Lease] = []

    def mark(self) -> None:
        """There is no tape."""

    def start(self) -> None:
        self._reset()
        self.directory = open_directory(self.disk, self.promises, self.choice.randrange(1, 1 << 30), self.settings)

    # ---- steps

    def _any_log(self, *, compacted: bool = True) -> tuple[int, Log, LogPromise] | None:
        found = [
            (identity, promise)
            for identity, promise in self.promises.items()
            if (identity, 0) in self.directory.logs
            and not promise.delete_asked
            and (compacted or not promise.compacted)
        ]
        if not found:
            return None
        identity, promise = self.choice.choice(found)
        return identity[-1], self.directory.logs[identity, 0], promise

    def make_topic(self) -> None:
        if len(self.directory.logs) >= MOST_TOPICS or self._next_topic > 250:
            return
        number = self._next_topic
        self._next_topic += 1
        used = {log.tp.topic for log in self.directory.logs.values()}
        free = [promise.tp.topic for promise in self.promises.values() if promise.tp.topic not in used]
        name = self.choice.choice(free) if free and self.choice.random() < 0.7 else f"topic{number}"
        kind = self.choice.choice(("stable", "stable", "page-cache", "compacted"))
        try:
            self.create(number, stable=kind != "page-cache", compacted=kind == "compacted", name=name)
        except (StorageError, KafkaError):
            if (topic_id(number), 0) not in self.directory.logs:
                self.promises[topic_id(number)].delete_asked = True
            raise

    def delete_topic(self) -> None:
        found = self._any_log()
        if found is not None and len(self.directory.logs) > 1 and self.choice.random() < 0.5:
            self.delete(found[0])

    def append(self) -> None:
        for _ in range(self.choice.randrange(1, 6)):
            found = self._any_log()
            if found is None:
                return
            number, log, promise = found
            producer = self.choice.choice((-1, *PRODUCERS))
            base, sequence = log.end_offset, self._sequences.get((log.topic_id, producer), 0)
            try:
                self.put(
                    number,
                    self.choice.choice(SIZES if self.choice.random() < 0.3 else SIZES[:5]),
                    records=self.choice.choice((1, 1, 3)),
                    producer=producer,
                    tombstone=promise.compacted and self.choice.random() < 0.2,
                    timeless=self.choice.random() < 0.1,
                )
            except (KafkaError, OSError):
                require(log.end_offset == base, "a refused append changed the log")
                self._sequences[log.topic_id, producer] = sequence
                promise.queued[base].pop()
                if not promise.queued[base]:
                    del promise.queued[base]
                raise

    def delete_records(self) -> None:
        found = self._any_log(compacted=False)
        if found is not None and found[1].durable_end > found[1].start_offset and self.choice.random() < 0.5:
            self.advance_start(found[0], self.choice.randrange(found[1].start_offset, found[1].durable_end + 1))

    def change_durability(self) -> None:
        found = self._any_log(compacted=False)
        if found is None or self.choice.random() < 0.5:
            return
        try:
            self.configure(found[0], stable=not found[2].stable)
        except (KafkaError, OSError) as error:
            if not isinstance(error, FencedDirectoryError):
                self.directory.journal.fail(None, error)  # as the engine does
            raise

    def change_retention(self) -> None:
        found = self._any_log(compacted=False)
        if found is not None:
            config: Any = found[1].config
            config.retention_bytes = self.choice.choice((-1, 3000, 8000))
            config.retention_ms = self.choice.choice((-1, -1, 5000))

    def begin_epoch(self) -> None:
        found = self._any_log()
        if found is None or self.choice.random() < 0.5:
            return
        number, log, promise = found
        if promise.stable:
            self.epoch(number, log.epochs.latest + self.choice.choice((1, 1, 3)))
        else:
            log.assign_epoch(log.epochs.latest + 1)  # goes with the records that a crash takes

    def roll(self) -> None:
        found = self._any_log()
        if found is not None and found[1].active.size and found[1].active.dormant is None:
            found[1].roll()

    def lease(self) -> None:
        if self._leases and self.choice.random() < 0.5:
            self._leases.pop().release()
        elif (found := self._any_log()) is not None:
            log = found[1]
            offset = self.choice.randrange(log.start_offset, log.end_offset + 1)
            self._leases.append(log.lease(offset, self.now + self.choice.randrange(1, 5000)))

    def read(self) -> None:
        found = self._any_log()
        if found is None:
            return
        _, log, promise = found
        for base, data in () if promise.compacted else view_of(log).batches:
            written = any(data == queued for _, queued in promise.queued.get(base, ()))
            require(written, f"{log.tp}: what is read at {base} was never written")
        log.offset_for_timestamp(NOW + self.choice.randrange(log.end_offset + 2), log.end_offset)
        log.max_timestamp_offset(log.end_offset)

    # ---- the engine's cycle, in pieces

    def begin_group(self) -> None:
        if self._group is None:
            self._group = self.directory.take_group()

    def end_group(self) -> None:
        group = self._group
        if group is None:
            return
        try:
            group.run()
        except NoRoomError:
            return
        except OSError as error:
            self.directory.journal.fail(group, error)
            raise
        self._group = None
        self.directory.journal.complete(group)
        self.settle()

    def commit(self) -> None:
        for _ in range(3):
            self.begin_group()
            self.end_group()

    def go_on_with_checkpoint(self) -> None:
        for _ in range(self.choice.randrange(1, 10)):
            job = self._checkpoint
            if job is None:
                self._checkpoint, self._synced = self.directory.take_checkpoint(self.choice.random() < 0.5), False
            elif not self._synced:
                try:
                    job.run()
                except OSError as error:
                    self._checkpoint = None
                    self.directory.fail_checkpoint(job, error)
                    raise
                self._synced = True
            else:
                self._checkpoint = None
                self.directory.complete_checkpoint(job)

    def go_on_with_house(self) -> None:
        for _ in range(self.choice.randrange(1, 8)):
            if not self._jobs:
                self._take_jobs()
            elif not self._job_ran:
                try:
                    self._jobs[0].run()
                except (OSError, DuramenError) as error:
                    self._job_ran.append(error)
                else:
                    self._job_ran.append(None)
            else:
                job, error = self._jobs.pop(0), self._job_ran.pop()
                job.complete() if error is None else job.fail(error)

    def _take_jobs(self) -> None:
        self.now += 1
        for log in self.directory.logs.values():
            self.promises[log.topic_id].start_asked = log.end_offset
        self._jobs = list(self.directory.take_maintenance(self.now))
        for log in self.directory.logs.values():
            promise = self.promises[log.topic_id]
            promise.start_asked = max(promise.start, log.start_offset)

    def go_on_with_compaction(self) -> None:
        for _ in range(self.choice.randrange(1, 16)):
            if self._cleaning is None:
                self.now += 1000
                self._cleaning, self._cleans = self.directory.cleaner.take(CLEANER, self.now), None
                return
            if self._cleans is None:
                self._cleans = self._cleaning.take(self.now)
            else:
                job, self._cleans = self._cleans, None
                try:
                    job()
                except (OSError, DuramenError) as error:
                    self._cleaning.fail(error)
            if self._cleaning.over:
                self._cleaning = None

    def disturb(self) -> None:
        """The disk gets full, or fails, or the process has too many files; or that is over."""
        if self.crashing.fault is not None:
            self.crashing.fault = self.directory.journal.no_room = None
        elif self.choice.random() < 0.3:
            self.crashing.fault = trouble(self.choice.choice(sorted(TROUBLES)), Random(self.choice.random()))

    def steps(self, count: int) -> bool:
        """So many of them; False when the directory was fenced on the way."""
        often = [self.append] * 9 + [self.commit] * 6 + [self.begin_group, self.end_group] * 2
        often += [self.go_on_with_checkpoint, self.go_on_with_house, self.go_on_with_compaction] * 4
        rare = [self.make_topic, self.delete_topic, self.delete_records, self.change_durability, self.change_retention]
        rare += [self.begin_epoch, self.roll, self.lease, self.read, self.disturb]
        for _ in range(count):
            try:
                self.choice.choice(often + rare)()
            except (KafkaError, OSError, StorageError) as error:
                if self.directory.journal.failed is not None:
                    return False
                if isinstance(error, CorruptLogError) or not (
                    self.crashing.fault or isinstance(error, KafkaError | NoRoomError)
                ):
                    raise
        return True

    def stop(self) -> None:
        while self._group is not None:
            self.end_group()
        while self._checkpoint is not None:
            self.go_on_with_checkpoint()
        while self._jobs or self._job_ran:
            self.go_on_with_house()
        if self._cleans is not None:
            self._cleans()
        super().stop()
        self.crashing.end_process()

    # ---- what a start found

    def check(self) -> None:
        """The promises hold; what is there now is what is promised from here on."""
        for identity, promise in self.promises.items():
            log = self.directory.logs.get((identity, 0))
            if promise.compacted and log is not None:
                last = max((parse_header(data).next_offset for data in promise.acknowledged.values()), default=0)
                require(last <= log.end_offset, f"{promise.tp} ends at {log.end_offset}, {last} was acknowledged")
                # A producer is known by its last batches, whether they were acknowledged or not.
                promise.acknowledged = {
                    base: queued[-1][1] for base, queued in promise.queued.items() if base < log.end_offset
                }
        views = check_directory(self.directory, self.promises)
        self.promises = {identity: self._promised(identity, view) for identity, view in views.items()}

    def _promised(self, identity: TopicId, view: Any) -> LogPromise:
        before, log = self.promises[identity], self.directory.logs[identity, 0]
        for producer in PRODUCERS:
            known = log.producers.get(producer)
            self._sequences[identity, producer] = 0 if known is None else known.last_sequence + 1
        promise = LogPromise(
            before.tp, before.stable, before.compacted, created=True, start=view.start, start_asked=view.start,
            synced_end=view.end, epoch=view.epochs[-1][0] if before.stable and view.epochs else -1,
        )  # fmt: skip
        if before.compacted:
            promise.queued = {base: queued[-1:] for base, queued in before.queued.items() if base < view.end}
            promise.acknowledged = {base: data for base, data in before.acknowledged.items() if base < view.end}
        else:
            promise.queued = {base: [(0, data)] for base, data in view.batches}
            promise.acknowledged = dict(view.batches) if before.stable else {}
        return promise


TROUBLES: dict[str, tuple[int, tuple[str, ...], float]] = {
    "full": (errno.ENOSPC, ("pwritev", "preallocate"), 1.0),
    "nearly full": (errno.ENOSPC, ("pwritev", "preallocate", "rename"), 0.3),
    "too many files": (errno.EMFILE, ("open",), 0.5),
    "broken": (errno.EIO, ("sync", "sync_directory"), 0.05),
}
"""Error, calls that may meet it, and how often."""


def trouble(kind: str, random: Random) -> Callable[[Call], OSError | None]:
    """A fault of a CrashDisk."""
    number, operations, share = TROUBLES[kind]

    def fault(call: Call) -> OSError | None:
        preallocated = "journal" in call.path and ".new" not in call.path
        if call.operation not in operations or preallocated or random.random() >= share:
            return None
        return OSError(number, kind, call.path)

    return fault


def end(life: Interleaved) -> None:
    """Random steps, up to one of ENDS."""
    how = life.choice.choice(ENDS)
    disk = life.crashing
    soon = disk.calls + life.choice.randrange(1, 3000)
    if how == "cut_soon":
        disk.cut_at = soon
    elif how == "kill_soon":
        disk.kill_at = soon
    try:
        unfenced = life.steps(life.choice.randrange(20, 160))
        disk.cut_at = disk.kill_at = None
        if how == "stop" and unfenced and disk.fault is None:
            life.stop()
        elif how.startswith("cut"):
            disk.power_cut()
        else:
            disk.kill()
    except NodeDied:
        pass


def start_again(life: Interleaved) -> None:
    """The disk is sound again; perhaps some starts die before one comes to its end."""
    disk = life.crashing
    for dies in [True] * life.choice.choice((0, 0, 1, 2)) + [False]:
        disk.fault = disk.cut_at = disk.kill_at = None
        if not disk.powered:
            disk.power_on()
        soon = disk.calls + life.choice.randrange(1, 400)
        if dies and life.choice.random() < 0.5:
            disk.cut_at = soon
        elif dies:
            disk.kill_at = soon
        try:
            life.start()
            if dies:
                disk.kill()
        except NodeDied:
            continue


def live(seed: int) -> None:
    """One life. PromiseBrokenError, or whatever else goes wrong."""
    life = Interleaved(seed)
    life.start()
    for _ in range(GENERATIONS):
        end(life)
        start_again(life)
        life.check()


def main() -> int:
    """Many lives; the seeds of those that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            live(seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{given.seeds} lives, {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
