"""Readers that follow streams share one request to the cluster per stream, which waits for what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from duramen.client.protocol.fetch import FetchedBytes
from duramen.dlsn import Dlsn
from duramen.errors import ClosedError, DuramenError
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.streams.stream_page import read_page
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.tails.stream_cursor import interval_of
from duramen.gateway.tails.tail_page import TailPage
from duramen.gateway.tails.tail_rings import StreamKey, TailReader, TailRing, TailRings, Taken

TICK_S: Final = 0.25
"""How exactly waits end, and requests without readers."""


class Wait(NamedTuple):
    """Until when (monotonic, s) a reader waits. push: gives it what came at once; whether it goes on to wait."""

    until_s: float
    push: Callable[[], bool] | None


class SharedRead(NamedTuple):
    """The reading of one stream: its task, and who waits."""

    task: asyncio.Task[None]
    waiting: dict[asyncio.Future[None], Wait]


class SharedTails:
    """The ends of streams. fetch: what comes at a position of a stream, nothing when that took too long.

    reader_max_bytes: given to a reader at a time. `stopping` lets all go who wait.
    """

    def __init__(
        self,
        rings: TailRings,
        fetch: Callable[[StreamInfo, Dlsn], Awaitable[FetchedBytes]],
        reader_max_bytes: int,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._rings = rings
        self._fetch = fetch
        self._reader_max_bytes = reader_max_bytes
        self._clock = clock
        self._metrics = metrics
        self._stopping = stopping
        self._reads: dict[TailRing, SharedRead] = {}
        self._ticking = False

    def holds(self, info: StreamInfo, position: Dlsn) -> bool:
        """Whether a reader at the position would get all that comes from the shared read."""
        return self._rings.holds(_key(info), position)

    def join(self, info: StreamInfo, position: Dlsn) -> TailReader:
        """A reader that has all up to the position; it has to `leave`."""
        reader = self._rings.join(_key(info), position)
        if reader.ring not in self._reads:
            self._reads[reader.ring] = SharedRead(asyncio.create_task(self._read(info, reader.ring)), {})
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return reader

    def leave(self, reader: TailReader) -> None:
        """The reader is gone."""
        self._rings.leave(reader, self._clock.monotonic_s())

    def take(self, reader: TailReader) -> Taken:
        """What comes next for the reader."""
        return self._rings.take(reader, self._reader_max_bytes)

    def moved(self, reader: TailReader, position: Dlsn) -> None:
        """The reader has read on its own up to a position."""
        self._rings.moved(reader, position)

    def has_more(self, reader: TailReader) -> bool:
        """Whether `take` would give the reader anything."""
        return self._rings.has_more(reader)

    async def wait(
        self,
        readers: Sequence[TailReader],
        until_s: float,
        *,
        left: asyncio.Future[None] | None = None,
        push: Callable[[], bool] | None = None,
    ) -> None:
        """Until something came for one of them, the time is up, the gateway ends or `left` is done.

        push: called when something came; it may take that, and the wait goes on if it says so.
        """
        waited = [self._reads[reader.ring] for reader in readers if reader.ring in self._reads]
        if len(waited) < len(readers):
            return
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object) -> None:
            if not came.done():
                came.set_result(None)

        for shared in waited:
            shared.waiting[came] = Wait(until_s, push)
        if left is not None:
            left.add_done_callback(wake)
        try:
            await came
        finally:
            for shared in waited:
                shared.waiting.pop(came, None)
            if left is not None:
                left.remove_done_callback(wake)

    async def _read(self, info: StreamInfo, ring: TailRing) -> None:
        failure: DuramenError = ClosedError("the shared read has ended")
        try:
            while not ring.closed:
                fetched = await self._fetch(info, ring.end)
                self._metrics.tail_bytes_read.inc(len(fetched.data))
                page = read_page(fetched, ring.end)._replace(stream_id=info.topic_id.hex())
                interval = interval_of(self._clock.now_ms() / 1000)
                self._rings.add(ring, TailPage(ring.end, page, interval), page.log_start)
                if fetched.data:
                    _wake(self._reads[ring])
        except DuramenError as error:
            failure = error
        finally:
            if not ring.closed and (shared := self._reads.pop(ring, None)) is not None:
                self._rings.fail(ring, failure)
                _wake(shared)

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        for ring in self._rings.idle(now_s):
            self._reads.pop(ring).task.cancel()
        for shared in self._reads.values():
            _wake(shared, None if self._stopping.is_set() else now_s)
        self._ticking = bool(self._reads)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


def _wake(shared: SharedRead, now_s: float | None = None) -> None:
    """All who wait there; with a time only those whose wait ends."""
    for came, wait in list(shared.waiting.items()):
        if now_s is not None:
            goes_on = wait.until_s > now_s
        else:
            goes_on = wait.push is not None and wait.push()
        if not goes_on:
            del shared.waiting[came]
            if not came.done():
                came.set_result(None)


def _key(info: StreamInfo) -> StreamKey:
    return info.topic_id, info.partition.partition
