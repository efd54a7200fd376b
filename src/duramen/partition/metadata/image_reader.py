"""Feeds the image of a node from its own copy of the metadata log: committed batches, in order, in slices.

Every node reads it so, the active controller's too: what was decided here comes back by the log like everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.metadata.committed_image import Changes, CommittedImage
from duramen.machines.metadata.image import MetadataImage
from duramen.partition.host.replay import ReadableLog, apply_batch, checked_batches, read_committed
from duramen.ports import Clock

SLICE_RECORDS: Final = 500
"""Applied in one turn of the loop, and what is left of the batch that has the last of them: a few milliseconds."""
RETRY_SECONDS: Final = 1.0
"""After which the disk is asked again for what it could not read."""


class WatchedLog(ReadableLog, Protocol):
    """What a reader needs of the metadata partition."""

    def watch(self, callback: Callable[[], None], on_failed: Callable[[KafkaError], None] | None = None) -> None: ...


OnUnreadable = Callable[[DuramenError, int], None]
"""Takes what a read failed with, and how many have in a row."""
OnChanges = Callable[[Changes, int], None]
"""Takes what changed, and how many bytes of the log said so."""


class ImageReader:
    """Of one metadata log. Loop thread only.

    on_changes: called with each slice once `follow` has begun. on_unreadable: the log could not be read; where the disk
    failed it is read again, what is damaged (`failed`) is not, and nothing after it will be applied. on_gap: hears the
    first and last offset of what a repair took out.
    """

    def __init__(
        self,
        log: WatchedLog,
        committed: CommittedImage,
        clock: Clock,
        on_changes: OnChanges,
        on_unreadable: OnUnreadable,
        on_gap: Callable[[int, int], None],
    ) -> None:
        self.position = 0
        """Everything below this offset is in the image."""
        self.failed: DuramenError | None = None
        """Why nothing more is applied."""
        self._log = log
        self._committed = committed
        self._clock = clock
        self._on_changes = on_changes
        self._on_unreadable = on_unreadable
        self._on_gap = on_gap
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._scheduled = False
        self._closed = False
        self._failures = 0
        """In a row, of the disk."""

    def load(self, position: int) -> None:
        """Apply what is committed from this offset on, at once. Raises what reading raises: CorruptLogError, ..."""
        self.position = position
        while self.position < self._log.high_watermark:
            if not self._apply_slice(1 << 30):
                break
        self._committed.take_changes()  # nobody follows yet

    def follow(self) -> None:
        """From now on apply what becomes committed, and tell `on_changes`."""
        self._log.watch(self._watermark_moved)
        self._watermark_moved()

    def restart(self, image: MetadataImage) -> None:
        """The log begins anew after a snapshot, which holds this image."""
        self._committed.replace(image)
        self.position = image.next_offset
        self._tell(0)
        self._watermark_moved()

    def close(self) -> None:
        """Apply nothing more."""
        self._closed = True

    def when_applied(self, offset: int, callback: Callable[[], None]) -> None:
        """Call back once everything below `offset` is in the image: now, or as soon as it is."""
        if self.position >= offset:
            callback()
        else:
            self._waiting.append((offset, callback))

    def _watermark_moved(self) -> None:
        if not self._scheduled and self.failed is None and self.position < self._log.high_watermark:
            self._next_slice()

    def _next_slice(self) -> None:
        self._scheduled = False
        if self.failed is not None or self._closed:
            return
        first = self.position
        try:
            size = self._apply_slice(SLICE_RECORDS)
        except DuramenError as error:
            self._failures += 1
            if isinstance(error, StorageError) and not isinstance(error, CorruptLogError):
                self._scheduled = True
                self._clock.call_later(RETRY_SECONDS, self._next_slice)
            else:
                self.failed = error
            self._on_unreadable(error, self._failures)
            return
        self._failures = 0
        more = self.position > first and self.position < self._log.high_watermark
        if more:
            self._scheduled = True
            self._clock.call_soon(self._next_slice)
        self._tell(size)

    def _tell(self, size: int) -> None:
        self._on_changes(self._committed.take_changes(), size)
        if self._waiting:
            due = [callback for offset, callback in self._waiting if offset <= self.position]
            self._waiting = [each for each in self._waiting if each[0] > self.position]
            for callback in due:
                callback()

    def _apply_slice(self, most_records: int) -> int:
        """Apply whole batches; returns their bytes, 0 when there is none."""
        log, first = self._log, self.position
        data = read_committed(log, first)
        if not data:
            return 0
        applied = size = 0
        for header, view, missing in checked_batches(log.tp, data, first):
            if missing is not None:
                self._on_gap(*missing)
            for _ in apply_batch(self._committed, view, header, first):
                applied += 1
            self.position = header.next_offset
            size += header.size
            if applied >= most_records:
                break
        if self.position <= first:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{log.tp}: no whole batch at offset {first}")
        self._committed.image.next_offset = self.position
        return size
