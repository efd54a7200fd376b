"""Which transactions a compaction pass has met: what was rolled back goes at once, markers when nothing needs them.

A pass goes below the last stable offset only, so every transaction in it is decided, and the aborted ones are in the
`.txnindex` files of the log's segments, whichever segment their marker is in.
"""

from __future__ import annotations

from collections.abc import Iterable

from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.wire.batch import ABORT, BatchHeader, Marker


class CleanedTransactions:
    """Follows the batches of one pass in offset order. aborted: entries of `.txnindex`, in any order.

    index: the entries that are still needed, since something of their transaction was met; by the caller, who takes
    them away segment by segment.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()
        self._committed: set[int] = set()
        self.index: list[AbortedTransaction] = []

    def _advance(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted[entry.producer_id] = entry
            self._met.discard(entry.producer_id)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Note a data batch; whether it was rolled back."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        producer = header.producer_id
        if producer in self._aborted:
            self._met.add(producer)
            return True
        self._committed.add(producer)
        return False

    def is_superfluous(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Note a control batch; whether it ends a transaction of which nothing is left."""
        self._advance(header.last_offset)
        if marker is None:
            return header.count == 0
        producer = header.producer_id
        if marker.type != ABORT:
            met = producer in self._committed
            self._committed.discard(producer)
            return not met
        entry = self._aborted.pop(producer, None)
        if entry is None or producer not in self._met:
            return True
        self._met.discard(producer)
        self.index.append(entry)
        return False
