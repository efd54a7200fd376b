"""The last Stream-Seq of a stream: a header of the records that had one, read back from the log.

What is known is how far the log was read and which was the last until there. An append at that very end, refused
anywhere else, is one after that last one, whoever writes besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.list_offsets import EARLIEST
from duramen.dlsn import LogEnd
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.streams.stream_page import INFLATED_MAX
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.wire.batch import batches, records

SEQUENCE_HEADER: Final = b"stream-seq"

_FIRST_WINDOW: Final = 16
_GROWTH: Final = 16
_KNOWN_MAX: Final = 10_000
_CHUNK_BYTES: Final = 1 << 20
_COMMIT_S: Final = 15.0
"""What was the end and is not there by then was lost."""
_WAIT_MS: Final = 500
"""For what is stored and not committed yet: it is waited for, or it could be passed over."""


class LastSequence:
    """end: up to where the log is known, None for nothing yet; sequence: the last one before it."""

    def __init__(self) -> None:
        self.end: LogEnd | None = None
        self.sequence: bytes | None = None
        self.lock = asyncio.Lock()


class StreamSequences:
    """The last sequences of the streams that have any."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._known: dict[bytes, LastSequence] = {}

    @asynccontextmanager
    async def of(self, info: StreamInfo) -> AsyncIterator[LastSequence]:
        """What is known of a stream, for one append at a time."""
        last = self._known.get(info.topic_id)
        if last is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known = {key: each for key, each in self._known.items() if each.lock.locked()}
            last = self._known[info.topic_id] = LastSequence()
        async with last.lock:
            yield last

    async def read_on(self, info: StreamInfo, last: LastSequence, end: LogEnd) -> None:
        """Bring what is known up to `end`. What other leaders had may have been lost since it was read."""
        known, last.end = last.end, None
        if known is None or end.epoch != known.epoch or end.offset < known.offset:
            last.sequence = await self._backwards(info, end.offset)
        else:
            last.sequence = await self._last_in(info, known.offset, end.offset) or last.sequence
        last.end = end

    async def _backwards(self, info: StreamInfo, end: int) -> bytes | None:
        """The last sequence before `end`, looked for in windows that grow towards the beginning."""
        stop, window = end, _FIRST_WINDOW
        while stop > 0:
            start = max(0, stop - window)
            found = await self._last_in(info, start, stop)
            if found is not None:
                return found
            stop, window = start, window * _GROWTH
        return None

    async def _last_in(self, info: StreamInfo, start: int, stop: int) -> bytes | None:
        found = None
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + _COMMIT_S
        while start < stop:
            if now_s() > until_s:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{info.topic}: nothing comes at {start}; {stop} was the end"
                )
            try:
                fetched = await self._cluster.fetch(
                    info.partition, start, _CHUNK_BYTES, max_wait_ms=_WAIT_MS, topic_id=info.topic_id
                )
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                start = await self._first(info, start)
                continue
            for place, header in batches(fetched.data):
                if header.is_control:
                    continue
                for record in records(fetched.data[place : place + header.size], header, max_bytes=INFLATED_MAX):
                    if start <= record.offset < stop:
                        found = next((value for name, value in record.headers if name == SEQUENCE_HEADER), found)
            if fetched.next_offset > start:
                start, until_s = fetched.next_offset, now_s() + _COMMIT_S
        return found

    async def _first(self, info: StreamInfo, offset: int) -> int:
        """The log start; beyond `offset`, where that was said to be out of range."""
        listed = await self._cluster.list_offsets({info.partition: EARLIEST})
        return max(offset + 1, listed[info.partition].offset)
