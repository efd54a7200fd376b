"""What the storage tests share: a log on a temporary directory with a journal that only takes notes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from duramen.model import TopicPartition
from duramen.ports import Buffer, FileSpan
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import create_log
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.open import open_log
from duramen.storage.log.seals import complete_seal, take_seals
from duramen.storage.log.truncation import complete_rebuild, complete_truncation, take_rebuild, truncate_log
from duramen.storage.read.read_plan import LogRead, Pending
from duramen.storage.read.timestamp_lookup import Timestamped, search_by_timestamp
from duramen.wire.batch import NewRecord, batches, build_batch, parse_header, records

TP = TopicPartition("events", 3)
TOPIC_ID = bytes(range(16))


class NoteJournal:
    """Counts LSNs up and keeps what was journaled."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.refuse: Exception | None = None

    def admit(self, length: int) -> None:
        if self.refuse is not None:
            raise self.refuse

    def make_way(self) -> bool:
        return False

    def append(
        self, kind: int, log: Log, offset: int, epoch: int, segment_base: int, position: int, data: Buffer | None = None
    ) -> int:
        self.entries.append((kind, offset, epoch, segment_base, position, data))
        return len(self.entries)

    def kinds(self) -> list[int]:
        return [entry[0] for entry in self.entries]


def rebuild_producers(log: Log) -> None:
    """What is read off the loop behind a truncation, here and now."""
    job = take_rebuild(log)
    if job is not None:
        job.run()
        assert complete_rebuild(log, job)


def offset_for_timestamp(log: Log, timestamp: int, end: int) -> Timestamped | None:
    """First record below `end` that is at least this young, read here and now."""
    return search_by_timestamp(partial(log.time_lookup, timestamp, end))


def max_timestamp_offset(log: Log, end: int) -> Timestamped | None:
    """The (first) youngest record below `end`, read here and now."""
    return log.max_timestamp_lookup(end).run()


class Bench:
    """Makes, feeds and reopens one log."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.disk = RealDisk()
        self.path = str(path / "events-3")
        self.journal = NoteJournal()
        self.config = PlainLogConfig(**config)
        self.log = create_log(self.disk, self.path, TP, TOPIC_ID, self.config, self.journal)

    def append(self, *values: bytes, timestamp: int = 1000, epoch: int = 0, **more: Any) -> int:
        """One batch of these values at the end of the log; returns its LSN."""
        return self.append_batch([(None, value, [], timestamp) for value in values], epoch=epoch, **more)

    def append_batch(self, new: list[NewRecord], *, epoch: int = 0, **more: Any) -> int:
        return self.append_raw(build_batch(new, base_offset=self.log.end_offset, leader_epoch=epoch, **more))

    def append_raw(self, data: bytearray) -> int:
        view = memoryview(data)
        return self.log.append(view, parse_header(view), 0)

    def fill(self, count: int, size: int = 100, **more: Any) -> None:
        """`count` batches of one record each: value is its offset and padding; timestamps ascend by 10 ms."""
        for _ in range(count):
            offset = self.log.end_offset
            self.append(b"%d:" % offset + b"x" * size, timestamp=1000 + 10 * offset, **more)

    def truncate(self, offset: int) -> None:
        """Cut the log, as when the truncation's entry is durable at once."""
        truncate_log(self.log, offset)
        complete_truncation(self.log)
        rebuild_producers(self.log)

    def sync(self, *, full: bool = False) -> None:
        job = take_sync(self.log, full)
        if job is not None:
            job.run()
            complete_sync(self.log, job)

    def seal(self) -> int:
        jobs = take_seals(self.log)
        for job in jobs:
            job.run()
            complete_seal(self.log, job)
        return len(jobs)

    def reopen(self, *, clean: bool = True, start_offset: int = 0, recovery_point: int | None = None) -> Log:
        if clean:
            self.sync(full=True)
            self.log.close()
        else:
            self.log.flush()
            self.close()
        point = self.log.recovery_point if recovery_point is None else recovery_point
        self.log = open_log(
            self.disk,
            self.path,
            TP,
            TOPIC_ID,
            self.config,
            self.journal,
            clean=clean,
            start_offset=start_offset,
            recovery_point=point,
        )
        return self.log

    def close(self) -> None:
        """Its files, as they are."""
        for segment in self.log.segments:
            segment.close()

    def bytes_of(self, read: LogRead) -> bytes:
        """The read's bytes, fetched as a transport would."""
        out = b""
        for part in read.parts:
            if isinstance(part, FileSpan):
                out += part.file.pread(part.length, part.position)
            elif isinstance(part, Pending):
                out += bytes(part.run().data)
            else:
                out += bytes(part)
        return out

    def read(
        self, offset: int, max_bytes: int = 1 << 20, end: int | None = None, *, at_least_one: bool = True
    ) -> bytes:
        bound = self.log.end_offset if end is None else end
        return self.bytes_of(self.log.read(offset, max_bytes, bound, at_least_one=at_least_one))

    def whole(self, start: int, step: int, end: int | None = None) -> list[int]:
        """Base offsets met by a consumer that reads `step` bytes at a time."""
        bound = self.log.end_offset if end is None else end
        seen: list[int] = []
        offset = start
        while offset < bound:
            headers = [header for _, header in batches(self.read(offset, step, bound))]
            assert headers, offset
            seen += [header.base_offset for header in headers]
            offset = headers[-1].next_offset
        return seen

    def offsets(self, data: bytes) -> list[int]:
        return [header.base_offset for _, header in batches(data)]

    def values(self, data: bytes) -> list[bytes | None]:
        return [
            record.value
            for at, header in batches(data)
            for record in records(data[at : at + header.size], header, max_bytes=1 << 24)
        ]


def cold(bench: Bench) -> None:
    """Forget what is hot, so that reads verify."""
    for segment in bench.log.segments:
        bench.log.reader.dropped(segment)
    bench.log.reader.forget()


def without_nowait(bench: Bench) -> None:
    bench.disk.nowait = None


Maker = Callable[..., Bench]
