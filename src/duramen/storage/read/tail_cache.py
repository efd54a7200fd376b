"""Cache of the last small writes to each log: a client that follows a log's end is served without asking the file.

All logs of a process together, oldest out first. A read finds here all that it may see, or nothing. A log that nobody
follows keeps nothing here (`LogReader.wrote`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from duramen.ports import Buffer
from duramen.storage.segment.segment import Segment

LARGEST_BYTES = 16 * 1024
"""Of one write; what is larger is cheaper to send from the file."""
MOST_BYTES = 1 << 20
ENTRY_BYTES = 256
"""What an entry takes beside its records, about."""
MOST_WRITES = 8
"""One read brings together; who is further behind is served from the file."""


class TailCache:
    """The last small writes by segment and first offset. Owned by the loop thread."""

    __slots__ = ("_size", "_writes")

    def __init__(self) -> None:
        self._writes: OrderedDict[tuple[Segment, int], tuple[int, bytes]] = OrderedDict()
        """(offset behind it, whole batches) of each."""
        self._size = 0

    def add(self, segment: Segment, size: int, batches: Sequence[Buffer]) -> None:
        """These batches, of so many bytes, were written just now and are the segment's last."""
        if size > LARGEST_BYTES:
            return
        data = b"".join(batches)  # no copy of the one that is bytes, as small ones are
        self._writes[(segment, int.from_bytes(data[:8], "big"))] = (segment.next_offset, data)
        self._size += size + ENTRY_BYTES
        while self._size > MOST_BYTES:
            _, (_, oldest) = self._writes.popitem(last=False)
            self._size -= len(oldest) + ENTRY_BYTES

    def find(self, segment: Segment, offset: int, end: int, most: int) -> tuple[list[bytes], int]:
        """All batches from `offset` to `end`, and their bytes together.

        None of them where not all are here, or they are above `most` bytes.
        """
        found: list[bytes] = []
        size = 0
        while offset != end:
            write = self._writes.get((segment, offset))
            if write is None or len(found) == MOST_WRITES:
                return [], 0
            offset, data = write
            size += len(data)
            if offset > end or size > most:
                return [], 0
            found.append(data)
        return found, size

    def forget(self) -> None:
        """A log was cut, or some of it is gone."""
        self._writes.clear()
        self._size = 0
