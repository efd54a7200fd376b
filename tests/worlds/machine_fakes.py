"""A partition and a clock in memory, driven by hand: commits and time move only when the test says so."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.ports import FileSpan, Timer
from duramen.wire.batch import ABORT, COMMIT, BatchHeader, Record, build_marker, parse_header, records, stamp


class _Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Virtual time in whole milliseconds."""

    def __init__(self, wall: int = 1_700_000_000_000) -> None:
        self.wall = wall
        self._now_ms = 0
        self._agenda: list[tuple[int, int, _Timer, Callable[[], None]]] = []
        self._count = 0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def boottime(self) -> float:
        return self.monotonic()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0, callback)

    def call_last(self, callback: Callable[[], None]) -> None:
        self.call_soon(lambda: self.call_soon(callback))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self._count += 1
        timer = _Timer()
        heapq.heappush(self._agenda, (self._now_ms + round(seconds * 1000), self._count, timer, callback))
        return timer

    def step(self) -> None:
        """The first that is due now."""
        _, _, timer, callback = heapq.heappop(self._agenda)
        if not timer.cancelled:
            callback()

    def advance(self, ms: int) -> None:
        """Let so much time pass, running what falls due."""
        end = self._now_ms + ms
        while self._agenda and self._agenda[0][0] <= end:
            due, _, timer, callback = heapq.heappop(self._agenda)
            self.wall += max(due - self._now_ms, 0)
            self._now_ms = max(due, self._now_ms)
            if not timer.cancelled:
                callback()
        self.wall += end - self._now_ms
        self._now_ms = end


class _MemoryFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]


def _shaped(number: int, data: bytes) -> Any:
    """The three shapes a log's answer has: bytes, a span of a file, a cold piece that must be run."""
    if number % 3 == 0:
        return data
    if number % 3 == 1:
        return FileSpan(_MemoryFile(b"xx" + data + b"yy"), 2, len(data))  # type: ignore[arg-type]
    return SimpleNamespace(run=lambda: SimpleNamespace(data=data), complete=lambda: None)


class FakePartition:
    """A log of batches in memory; `segment` bytes at most per read (at least one batch)."""

    def __init__(self, segment: int = 1 << 20) -> None:
        self.tp = TopicPartition("t", 0)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.refuse: Exception | None = None
        self.accept_before_refusal = 0
        self.refusals = -1
        self.watchers: dict[Callable[[], None], None] = {}
        self.commit_at_once = False
        self.may_answer = True
        self._segment = segment
        self._batches: list[tuple[int, int, bytes]] = []

    @property
    def batch_count(self) -> int:
        return len(self._batches)

    def written(self) -> list[tuple[BatchHeader, list[Record]]]:
        """Every batch, and its records."""
        batches = [(parse_header(data), data) for _, _, data in self._batches]
        return [(header, list(records(data, header, max_bytes=1 << 24))) for header, data in batches]

    def append_local(self, batch: bytearray, now_ms: int) -> int:
        if self.refuse is not None and self.refusals != 0:
            if self.accept_before_refusal <= 0:
                self.refusals -= 1
                raise self.refuse
            self.accept_before_refusal -= 1
        header = parse_header(batch)
        stamp(batch, self.log_end_offset, 0)
        end = self.log_end_offset + header.last_offset_delta + 1
        self._batches.append((self.log_end_offset, end, bytes(batch)))
        self.log_end_offset = end
        if self.commit_at_once:
            self.commit()
        return end

    def append_marker(
        self,
        producer: ProducerEpoch,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        batch = build_marker(producer.id, producer.epoch, COMMIT if commit else ABORT, coordinator_epoch, now_ms)
        try:
            end = self.append_local(batch, now_ms)
        except KafkaError as error:
            done(error)
            return
        if self.high_watermark >= end:
            done(None)
            return

        def moved() -> None:
            if self.high_watermark >= end:
                self.unwatch(moved)
                done(None)

        self.watch(moved)

    def read(self, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True) -> Any:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        parts: list[bytes] = []
        size = 0
        for _, end, data in self._batches:
            if end <= offset or end > self.high_watermark:
                continue
            if parts and size + len(data) > min(max_bytes, self._segment):
                break
            parts.append(data)
            size += len(data)
        return SimpleNamespace(parts=[_shaped(number, part) for number, part in enumerate(parts, offset)])

    def watch(self, callback: Callable[[], None], on_failed: object = None) -> None:
        self.watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        self.watchers.pop(callback, None)

    def damage(self) -> None:
        """Flip a bit in the last batch."""
        first, end, data = self._batches[-1]
        self._batches[-1] = (first, end, data[:-1] + bytes([data[-1] ^ 1]))

    def commit(self, end: int | None = None) -> None:
        """Move the high watermark to `end`, the log end by default."""
        self.high_watermark = self.log_end_offset if end is None else end
        for callback in list(self.watchers):
            callback()
