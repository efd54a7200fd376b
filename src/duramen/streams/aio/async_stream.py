"""One stream on asyncio, and writing to it: the calls of `Stream` and `StreamWriter` as coroutines."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from duramen.dlsn import Dlsn
from duramen.streams.aio.async_reader import AsyncReader
from duramen.streams.read_positions import Position
from duramen.streams.receipt import Receipt
from duramen.streams.record_cursor import cursor_at
from duramen.streams.records import NewStreamRecord
from duramen.streams.stream_calls import Records, StreamCalls
from duramen.streams.writer_session import WRITER_BYTES, WriterSession, WriterWish, open_session


class AsyncStreamWriter:
    """A `StreamWriter` for `async with`. For one task."""

    def __init__(self, session: WriterSession) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close(flushes=error is None)

    @property
    def epoch(self) -> int:
        """As of `StreamWriter`."""
        return -1 if self._session.turn is None else self._session.turn.epoch

    @property
    def sequence(self) -> int:
        """As of `StreamWriter`."""
        return -1 if self._session.turn is None else self._session.turn.sequence

    async def write(self, record: bytes | NewStreamRecord, *, txid: int | None = None) -> Receipt | None:
        """As of `StreamWriter`."""
        return await self._session.write(record, txid)

    async def flush(self) -> Receipt | None:
        """As of `StreamWriter`. One that is cancelled may have stored its batch; see `DeadlineError` there."""
        return await self._session.flush()

    async def close_stream(self) -> None:
        """As of `StreamWriter`."""
        await self._session.close_stream()

    async def close(self) -> None:
        """As of `StreamWriter`."""
        await self._session.close(flushes=True)


class AsyncStream:
    """One stream of a namespace. All as of `Stream`; calls may run at once. One that is cancelled may take effect."""

    def __init__(self, calls: StreamCalls) -> None:
        self.name = calls.name
        self.topic = calls.topic
        self.stream_id = calls.stream_id
        self._calls = calls

    def __repr__(self) -> str:
        return f"<duramen.streams.aio.AsyncStream {self.name!r}>"

    async def append(
        self, records: Records, *, expected_position: Dlsn | int | None = None, close: bool = False
    ) -> Receipt:
        """As of `Stream`."""
        return await self._calls.append(records, expected_position, close=close)

    async def writer(
        self,
        *,
        expected_position: Dlsn | int | None = None,
        max_bytes: int = WRITER_BYTES,
        name: str | None = None,
        exclusive: bool = False,
        epoch: int | None = None,
        sequence: int = 0,
    ) -> AsyncStreamWriter:
        """As of `Stream`: `async with await stream.writer(name="importer-7") as writer`."""
        wish = WriterWish(expected_position, max_bytes, name, exclusive, epoch, sequence)
        return AsyncStreamWriter(await open_session(self._calls, wish))

    async def reader(
        self,
        start: Position = "start",
        *,
        after: Dlsn | int | None = None,
        txid: int | None = None,
        follow: bool = False,
    ) -> AsyncReader:
        """As of `Stream`: `async for record in await stream.reader()`."""
        return AsyncReader(await cursor_at(self._calls, start, after=after, txid=txid, follow=follow))

    async def truncate(self, before: Position) -> int:
        """As of `Stream`."""
        return await self._calls.truncate(before)

    async def close_stream(self, *, expected_position: Dlsn | int | None = None) -> None:
        """As of `Stream`."""
        await self._calls.close_stream(expected_position)

    async def is_closed(self) -> bool:
        """As of `Stream`."""
        return (await self._calls.state()).closed

    async def settings(self) -> dict[str, str]:
        """As of `Stream`."""
        return await self._calls.settings()

    async def start(self) -> int:
        """As of `Stream`."""
        return await self._calls.start()

    async def end(self) -> int:
        """As of `Stream`."""
        return await self._calls.end()

    async def end_position(self) -> Dlsn:
        """As of `Stream`."""
        return await self._calls.end_position()
