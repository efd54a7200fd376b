"""A topic of namespaces in memory, for what reads and changes it by generators, with writers that come in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duramen.client.protocol.record_table import (
    FROM_START,
    ReadTable,
    TableAsk,
    TableReading,
    TableStretch,
)
from duramen.wire.batch import NewRecord, build_batch


class NamespaceTopic:
    """The log, of which the last `hidden` batches are not committed. between: called before each append.

    is_stuck: waiting commits none of them.
    """

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[tuple[int, bytes]] = []
        """Base offset and bytes."""
        self.end = 0
        self.hidden = 0
        self.is_stuck = False
        self.asks: list[TableAsk] = []
        self.between: Callable[[], object] = lambda: None

    def append(self, rows: Sequence[NewRecord]) -> None:
        self.batches.append((self.end, bytes(build_batch(rows, base_offset=self.end, leader_epoch=0))))
        self.end += len(rows)

    def run(self, work: TableReading) -> None:
        """What a driver does."""
        try:
            ask = next(work)
            while True:
                ask = work.send(self.answer(ask))
        except StopIteration:
            return

    def answer(self, ask: TableAsk) -> TableStretch | bool | None:
        self.asks.append(ask)
        if isinstance(ask, ReadTable):
            return self._read(ask)
        self.between()
        if ask.expected != self.end:
            return False
        self.append(ask.rows)
        return True

    def _read(self, ask: ReadTable) -> TableStretch | None:
        if ask.wait and self.hidden and not self.is_stuck:
            self.hidden -= 1
        shown = self.batches[: len(self.batches) - self.hidden]
        end = self.batches[len(shown)][0] if self.hidden else self.end
        offset = self.start if ask.offset == FROM_START else ask.offset
        if not self.start <= offset <= self.end:
            return None
        found = [data for base, data in shown if base >= offset][:2]  # not all at once
        return TableStretch(b"".join(found), (), end)
