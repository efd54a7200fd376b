"""A log's batches as a fetch would bring them, for the tests that read a log without a server."""

from __future__ import annotations

from collections.abc import Iterator

from duramen.ports import FileSpan
from duramen.storage.log.log import Log
from duramen.wire.batch import BatchHeader, batches


def stored_batches(log: Log, start: int, end: int, max_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch from the one at or behind `start` up to `end`, read by read of at most `max_bytes`.

    AssertionError when a read leads nowhere: a reader would hang there.
    """
    offset = start
    while offset < end:
        answer = log.read(offset, max_bytes, end, at_least_one=True)
        following = answer.next_offset
        for part in answer.parts:
            if isinstance(part, FileSpan):
                data = part.file.pread(part.length, part.position)
            elif isinstance(part, bytes | bytearray | memoryview):
                data = bytes(part)
            else:
                cold = part.run()
                data, following = bytes(cold.data), cold.next_offset
            view = memoryview(data)
            for position, header in batches(view):
                yield header, view[position : position + header.size]
        assert following > offset, f"{log.tp}: a read from {offset} leads nowhere"
        offset = following
