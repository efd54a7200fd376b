"""Records of several streams in the order of their transaction ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.streams.merge_order import MergeOrder
from duramen.streams.read_positions import Txid
from duramen.streams.record_cursor import RecordCursor
from duramen.streams.records import StreamRecord, checked_txid
from duramen.streams.stream_calls import StreamCalls


class MergedRecord(NamedTuple):
    """A record, and the name of the stream that it is of."""

    stream: str
    record: StreamRecord


class MergeCursor:
    """position: for each stream where another one goes on, after what was given."""

    def __init__(self, cursors: Mapping[str, RecordCursor], *, follow: bool) -> None:
        self.position = {name: cursor.dlsn for name, cursor in cursors.items()}
        self._cursors = cursors
        self._follow = follow
        self._order = MergeOrder(cursors)

    async def next(self) -> MergedRecord | None:
        """The next record; None where none will come, or (not to follow) all were read to their ends."""
        while (turn := self._order.next()) is not None:
            name, record = turn
            if record is not None:
                self._order.idle(name, record.txid)
                self.position[name] = record.dlsn.next
                return MergedRecord(name, record)
            await self._bring(name)
        return None

    async def _bring(self, name: str) -> None:
        """The stream's next record, or what is known of it."""
        cursor, order = self._cursors[name], self._order
        while (record := cursor.take()) is None:
            if cursor.is_ended:
                order.ended(name)
                return
            if await cursor.advance():
                continue
            if not self._follow:
                order.ended(name)
                return
            if not order.is_known(name) and (least := await cursor.idle_txid()) is not None:
                order.idle(name, least)
                return
            if not await cursor.wait():
                order.ended(name)
                return
        order.brought(name, record)


async def merge_at(
    streams: Sequence[StreamCalls], start_txid: int | None, start: Mapping[str, Dlsn] | None, *, follow: bool
) -> MergeCursor:
    """See `Namespace.merged`."""
    positions = start or {}
    unknown = set(positions) - {calls.name for calls in streams}
    if unknown:
        raise ValueError(f"start has {', '.join(sorted(unknown))}, which is none of the streams that are merged")
    if not streams or len({calls.name for calls in streams}) != len(streams):
        raise ValueError("streams are merged by their names: at least one, and each once")
    least = 0 if start_txid is None else checked_txid(start_txid)
    cursors = {}
    for calls in streams:
        if await calls.txid_kind() == "none":
            text = f"{calls.name}: its records have no transaction ids, by which streams are merged"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        spot = await calls.locate(positions.get(calls.name, Txid(least) if least else "start"))
        cursors[calls.name] = RecordCursor(calls, spot, follow=follow, least_txid=least)
    return MergeCursor(cursors, follow=follow)
