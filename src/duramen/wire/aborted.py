"""Which stored batches were rolled back with their transactions: readers of committed records leave them out (KIP-98).

The log lists them as Fetch does, by producer and first offset. One ends at its producer's next abort marker.
"""

from __future__ import annotations

from collections.abc import Iterable

from duramen.wire.batch import ABORT, BatchHeader, parse_header, read_marker

AbortedTransaction = tuple[int, int]
"""Producer id and first offset."""


class AbortedTransactions:
    """Those of a stretch of log; to be asked of its transactional batches one after the other, markers among them."""

    __slots__ = ("_open", "_waiting")

    def __init__(self, listed: Iterable[AbortedTransaction]) -> None:
        """listed: all that have records or their marker in the stretch; none that ended in front of it."""
        self._waiting = sorted(listed, key=lambda entry: entry[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this batch's records were rolled back. KafkaError INVALID_RECORD for a marker that cannot be read."""
        if not header.is_transactional or not (self._waiting or self._open):
            return False
        return self.take(header.producer_id, header.last_offset, batch if header.is_control else None)

    def take(self, producer_id: int, last_offset: int, control: memoryview | None) -> bool:
        """The same of a transactional batch whose header was read otherwise. control: its bytes, of a control batch."""
        while self._waiting and self._waiting[-1][1] <= last_offset:
            self._open.add(self._waiting.pop()[0])
        if producer_id not in self._open:
            return False
        if control is None:
            return True
        marker = read_marker(control, parse_header(control))
        if marker is not None and marker.type == ABORT:
            self._open.discard(producer_id)
        return False
