"""Reading streams on asyncio."""

from __future__ import annotations

from duramen.dlsn import Dlsn
from duramen.streams.merge_cursor import MergeCursor, MergedRecord
from duramen.streams.record_cursor import RecordCursor
from duramen.streams.records import StreamRecord


class AsyncReader:
    """A `Reader` for `async for`. For one task."""

    def __init__(self, cursor: RecordCursor) -> None:
        self._cursor = cursor

    @property
    def position(self) -> int:
        """As of `Reader`."""
        return self._cursor.position

    @property
    def dlsn(self) -> Dlsn:
        """As of `Reader`."""
        return self._cursor.dlsn

    @property
    def stream_id(self) -> str:
        """As of `Reader`."""
        return self._cursor.stream_id

    @property
    def is_ended(self) -> bool:
        """As of `Reader`."""
        return self._cursor.is_ended

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> StreamRecord:
        record = self._cursor.take()
        if record is None and not self._cursor.is_ended:
            record = await self._cursor.next()
        if record is None:
            raise StopAsyncIteration
        return record


class AsyncMergedReader:
    """A `MergedReader` for `async for`. For one task."""

    def __init__(self, cursor: MergeCursor) -> None:
        self._cursor = cursor

    @property
    def position(self) -> dict[str, Dlsn]:
        """As of `MergedReader`."""
        return dict(self._cursor.position)

    def __aiter__(self) -> AsyncMergedReader:
        return self

    async def __anext__(self) -> MergedRecord:
        found = await self._cursor.next()
        if found is None:
            raise StopAsyncIteration
        return found
