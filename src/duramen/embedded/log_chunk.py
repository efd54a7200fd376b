"""A stretch of a partition as it is read at once: whole batches, and which of their records a reader gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from duramen.embedded.records import StoredRecord
from duramen.ports import Buffer, FileSpan, Part
from duramen.storage import Pending
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import BatchHeader, batches, records

MAX_INFLATED_BYTES: Final = 256 * 1024 * 1024


class LogChunk(NamedTuple):
    """Whole batches, the transactions among them that were rolled back, and the bound that they were read up to."""

    data: bytes
    aborted: Sequence[AbortedTransaction]
    bound: int

    def batches(self, partition: int, start: int, end: int | None) -> Iterator[tuple[int, Iterable[StoredRecord]]]:
        """The offset behind each batch from `start` on, and those of its records that lie in front of `end`."""
        aborted = AbortedTransactions(self.aborted)
        for position, header in batches(self.data):
            if header.next_offset <= start:
                continue
            view = memoryview(self.data)[position : position + header.size]
            hidden = aborted.hides(header, view) or header.is_control
            yield header.next_offset, () if hidden else _shown(view, header, partition, start, end)


def _shown(
    view: memoryview, header: BatchHeader, partition: int, start: int, end: int | None
) -> Iterator[StoredRecord]:
    for row in records(view, header, max_bytes=MAX_INFLATED_BYTES):
        if row.offset >= start and (end is None or row.offset < end):
            headers = tuple((str(bytes(name), "utf-8", "replace"), _plain(value)) for name, value in row.headers)
            yield StoredRecord(row.offset, row.timestamp, _plain(row.key), _plain(row.value), headers, partition)


def content(part: Part | Pending) -> Buffer:
    """The bytes of a part of a read, which may have to be read from its file."""
    if isinstance(part, FileSpan):
        return part.file.pread(part.length, part.position)
    return part.run().data if isinstance(part, Pending) else part


def _plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
