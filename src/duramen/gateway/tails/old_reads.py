"""Reads of what is not at the end of a partition: shared where they are for the same, and so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from duramen.dlsn import Dlsn
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.streams.streams import Streams
from duramen.gateway.tails.old_chunks import ChunkKey, OldChunks
from duramen.gateway.tails.page_forms import PageForm
from duramen.gateway.tails.read_turns import ReadTurns
from duramen.gateway.tails.stream_cursor import interval_of
from duramen.gateway.tails.tail_page import TailPage

FRESH_S: Final = 1.0
"""How long a log is taken to begin where it did."""

PAUSE_S: Final = 0.002
"""At least, after what one reader of old records gets."""

_KNOWN_MAX: Final = 10_000


class OldReads:
    """Reads for one reader at a time. turns: those of the nodes, which the leader of what is read gives.

    is_followed: whether anybody is at the end of a stream; then half of the time is left for that.
    """

    def __init__(
        self,
        streams: Streams,
        chunks: OldChunks,
        is_followed: Callable[[], bool],
        turns: ReadTurns,
        clock: GatewayClock,
        metrics: GatewayMetrics,
    ) -> None:
        self._streams = streams
        self._chunks = chunks
        self._is_followed = is_followed
        self._turns = turns
        self._turn = asyncio.Lock()
        self._clock = clock
        self._metrics = metrics
        self._under_way: dict[tuple[ChunkKey, Dlsn], asyncio.Task[TailPage]] = {}
        self._log_starts: dict[ChunkKey, tuple[float, int]] = {}

    async def read(self, info: StreamInfo, position: Dlsn, form: PageForm) -> TailPage:
        """The next records at a position, or the news that there are none now. Errors as of `Streams.read`.

        form: what will be asked of the page.

        Where more follows, who gets them takes turns: what is made of a chunk takes time, and between two of them those
        at the ends of streams get theirs.
        """
        found = await self._shared(info, position)
        if not found.page.up_to_date:
            async with self._turn:
                began_s = self._clock.monotonic_s()
                await asyncio.sleep(0)
                await found.prepare(form)
                if self._is_followed():
                    # A process that is never idle waits for the processor, too, and its readers at the ends with it.
                    await asyncio.sleep(max(PAUSE_S, self._clock.monotonic_s() - began_s))
        return found

    async def _shared(self, info: StreamInfo, position: Dlsn) -> TailPage:
        if info.is_compacted:
            return await self._read(info, position)
        key = _key(info)
        chunk = self._chunks.find(key, position)
        if chunk is not None and position.offset >= await self._log_start(info, key):
            self._metrics.chunks_shared.inc()
            return chunk
        other = self._under_way.get((key, position))
        if other is not None:
            found = await asyncio.shield(other)
            if not found.page.up_to_date:
                self._metrics.chunks_shared.inc()
                return found
            # What was the end for the other may have been read before a write that this reader knows of.
        task = asyncio.ensure_future(self._read_chunk(info, key, position))
        self._under_way[key, position] = task
        task.add_done_callback(lambda done: self._ended(key, position, done))
        return await asyncio.shield(task)

    def truncated(self, info: StreamInfo, log_start: int) -> None:
        """The log begins there from now on."""
        self._know(_key(info), log_start)

    def _ended(self, key: ChunkKey, position: Dlsn, task: asyncio.Task[TailPage]) -> None:
        if self._under_way.get((key, position)) is task:
            del self._under_way[key, position]
        if not task.cancelled():
            task.exception()  # who asked may have left

    async def _read_chunk(self, info: StreamInfo, key: ChunkKey, position: Dlsn) -> TailPage:
        found = await self._read(info, position)
        self._know(key, found.page.log_start)
        if not found.page.up_to_date:
            self._chunks.add(key, found)
        return found

    async def _read(self, info: StreamInfo, position: Dlsn) -> TailPage:
        async with self._turns.turn(await self._streams.leader(info)):
            self._metrics.old_reads.inc()
            page = await self._streams.read(info, position)
        page = page._replace(stream_id=info.topic_id.hex())
        return TailPage(position, page, interval_of(self._clock.now_ms() / 1000))

    async def _log_start(self, info: StreamInfo, key: ChunkKey) -> int:
        """Where the log begins, as of a moment ago at the earliest."""
        known = self._log_starts.get(key)
        if known is not None and self._clock.monotonic_s() - known[0] < FRESH_S:
            return known[1]
        start = await self._streams.log_start(info)
        self._know(key, start)
        return start

    def _know(self, key: ChunkKey, log_start: int) -> None:
        if len(self._log_starts) >= _KNOWN_MAX:
            self._log_starts.clear()
        self._log_starts[key] = (self._clock.monotonic_s(), log_start)
        self._chunks.truncate(key, log_start)


def _key(info: StreamInfo) -> ChunkKey:
    return ChunkKey(info.topic_id, info.number, info.leader_epoch)
