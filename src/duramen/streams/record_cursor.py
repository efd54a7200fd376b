"""Records of a stream in order, from a checked spot on: what the readers of both kinds go by."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from duramen.dlsn import Dlsn
from duramen.streams.read_positions import Position, Txid
from duramen.streams.records import StoredBatch, StreamRecord, StreamSpot
from duramen.streams.stream_calls import StreamCalls


class RecordCursor:
    """position: offset of the next record; dlsn: where another reader goes on with it; stream_id: of the stream;
    is_ended: it is closed, and all of it was read.

    least_txid: records below it are passed over, until the first that is not.
    """

    def __init__(self, calls: StreamCalls, spot: StreamSpot, *, follow: bool, least_txid: int = 0) -> None:
        self.calls = calls
        self.position = spot.offset
        self.dlsn: Dlsn = spot.dlsn
        self.stream_id = spot.stream_id
        self.is_ended = False
        self._spot = spot
        self._follow = follow
        self._least_txid = least_txid
        self._asked_closed = False
        self._batches: deque[StoredBatch] = deque()
        self._records: Iterator[StreamRecord] = iter(())

    def take(self) -> StreamRecord | None:
        """The next record of what was fetched, if there is one."""
        while True:
            for record in self._records:
                self.position, self.dlsn = record.offset + 1, record.dlsn.next
                if record.timestamp_ms >= self._least_txid or not self._least_txid:
                    self._least_txid = 0
                    return record
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._records = iter(batch.records)
            self.is_ended = batch.closes

    async def advance(self) -> bool:
        """Fetch more; False at the end."""
        stretch = await self.calls.fetch(self._spot)
        self._spot = stretch.next
        self._batches.extend(stretch.batches)
        return bool(stretch.batches)

    async def next(self) -> StreamRecord | None:
        """The next record. At the end None, or to follow: it waits; None where nothing will come."""
        while True:
            record = self.take()
            if record is not None or self.is_ended:
                return record
            if not await self.advance() and (not self._follow or not await self.wait()):
                return None

    async def wait(self) -> bool:
        """Wait at the end, half a second at most; False where nothing will come."""
        if not self._asked_closed:  # later on the record that closes the stream is seen
            self._asked_closed = True
            state = await self.calls.state()
            if state.closed and state.end <= self._spot.offset:
                await self.calls.fetch(self._spot)  # which is refused if that was another stream's state
                self.is_ended = True
                return False
        await self.calls.wait(self._spot)
        return True

    async def idle_txid(self) -> int | None:
        """At the end: what the transaction id of the next record cannot be below; None where there is more by now."""
        state = await self.calls.state()
        return max(state.last_txid, self._least_txid) if state.end <= self._spot.offset else None


async def cursor_at(
    calls: StreamCalls,
    start: Position = "start",
    *,
    after: Dlsn | int | None = None,
    txid: int | None = None,
    follow: bool = False,
) -> RecordCursor:
    """See `Stream.reader`."""
    if [start != "start", after is not None, txid is not None].count(True) > 1:
        raise TypeError("a reader has one of start, `after` and txid")
    place: Position = start
    if after is not None:
        if not isinstance(after, Dlsn) and (not isinstance(after, int) or isinstance(after, bool)):
            raise TypeError(f"`after` is the Dlsn of a record or an offset, not {after!r:.80}")
        place = after.next if isinstance(after, Dlsn) else after + 1
    if txid is not None:
        place = Txid(txid)
    spot = await calls.locate(place)
    least = place.value if isinstance(place, Txid) else 0
    return RecordCursor(calls, spot, follow=follow, least_txid=least)
