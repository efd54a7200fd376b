"""Readers that follow streams, by long-poll or server-sent events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

from starlette.requests import Request

from duramen.dlsn import Dlsn
from duramen.errors import DuramenError, ErrorCode
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.http_protocol import ResponseChunks, aborted_after
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_page import StreamPage, empty_page
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.tails import sse_frames
from duramen.gateway.tails.old_reads import OldReads
from duramen.gateway.tails.page_forms import PageForm, control_event
from duramen.gateway.tails.shared_tails import SharedTails
from duramen.gateway.tails.stream_cursor import JITTER_MAX_S, known_interval, next_cursor
from duramen.gateway.tails.tail_page import TailPage
from duramen.gateway.tails.tail_rings import TailReader, Taken

HEARTBEAT_S: Final = 15.0
RETRY_MS: Final = (1000, 4000)
"""Between these an EventSource is asked to wait: readers of one moment come back at different ones."""


class ReadLimits(NamedTuple):
    """How long a long-poll waits and an SSE response lasts, in seconds."""

    long_poll_s: float
    sse_s: float


class LivePage(NamedTuple):
    """What a long-poll is answered with. body: its messages, where others get the same."""

    page: StreamPage
    body: bytes | None = None


class LiveReaders:
    """Readers that wait. `tails` has what comes; who is behind that reads by `reads`, from its own position."""

    def __init__(
        self,
        reads: OldReads,
        tails: SharedTails,
        allowance: Allowance,
        limits: ReadLimits,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._reads = reads
        self._tails = tails
        self._allowance = allowance
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._stopping = stopping

    def cursor(self, given: str | None) -> str:
        """The cursor of an answer to a reader that has `given`."""
        return next_cursor(self._clock.now_ms() / 1000, given, random.randint(1, JITTER_MAX_S))

    def check(self) -> None:
        """Problem 503 where no more readers may wait."""
        self._allowance.check()

    # ---- long-poll -------------------------------------------------------------------------------------------

    async def poll(self, request: Request, info: StreamInfo, position: Dlsn, form: PageForm) -> LivePage:
        """What there is after a position, or what comes until the time is up, the client has left or the gateway
        ends; no messages then. Problem 404, 409, 410, 503."""
        if not self._tails.holds(info, position):
            found = await self._reads.read(info, position, form)
            if found.page.records or found.closed:
                return LivePage(found.page, found.body(form))
            position = found.position
        self._allowance.check()
        with self._allowance.one(), self._metrics.readers.track_inprogress():
            reader = self._tails.join(info, position)
            left = asyncio.ensure_future(disconnected(request))
            try:
                return await self._awaited(info, reader, form, left)
            finally:
                left.cancel()
                self._tails.leave(reader)

    async def _awaited(
        self, info: StreamInfo, reader: TailReader, form: PageForm, left: asyncio.Future[None]
    ) -> LivePage:
        end_s = self._clock.monotonic_s() + self._limits.long_poll_s
        while True:
            taken = self._tails.take(reader)
            if taken.alone or _is_elsewhere(taken.failure):
                own = await self._reads.read(info, reader.position, form)
                return LivePage(own.page, own.body(form))
            if taken.failure is not None:
                raise problem_of(taken.failure)
            if taken.pages:
                found = _joined(taken, form)
                if found.page.records or found.page.closed:
                    return found
            elif left.done() or self._is_over(end_s):
                return LivePage(empty_page(reader.position, closed=False))
            else:
                await self._tails.wait([reader], end_s, left=left)

    # ---- server-sent events ----------------------------------------------------------------------------------

    async def events(
        self,
        info: StreamInfo,
        page: TailPage,
        form: PageForm,
        cursor: str | None,
        chunks: ResponseChunks | None,
    ) -> AsyncGenerator[bytes]:
        """The events from a page on that was read; they end with the stream, its time, or an error, which the reader
        gets to know when it connects again from its position. chunks: where those may be written that come meanwhile.
        """
        cut_s = 2 * self._limits.sse_s
        head = sse_frames.retry(random.randint(*RETRY_MS))
        with (
            self._allowance.one(),
            self._metrics.readers.track_inprogress(),
            aborted_after(chunks, cut_s),
        ):
            end_s = self._clock.monotonic_s() + self._limits.sse_s
            try:
                yield head + self.frame(page, form, cursor)
                while not page.closed and not page.page.up_to_date and not self._tails.holds(info, page.position):
                    if self._is_over(end_s):
                        return
                    page = await self._reads.read(info, page.position, form)
                    yield self.frame(page, form, cursor)
                if page.closed:
                    return
                reader = self._tails.join(info, page.position)
                try:
                    async for frame in self._followed(
                        info, reader, end_s, TailEvents(self, self._tails, reader, form, cursor, chunks)
                    ):
                        yield frame
                finally:
                    self._tails.leave(reader)
            except (DuramenError, ProblemError):
                return

    async def _followed(
        self, info: StreamInfo, reader: TailReader, end_s: float, events: TailEvents
    ) -> AsyncGenerator[bytes]:
        heartbeat_s = self._clock.monotonic_s() + HEARTBEAT_S
        while True:
            now_s = self._clock.monotonic_s()
            if events.closed or self._is_over(end_s):
                return
            taken = self._tails.take(reader)
            if taken.failure is not None:
                return
            if taken.pages:
                heartbeat_s = now_s + HEARTBEAT_S
                frames = events.frames(taken)
                if frames:
                    yield frames
            elif taken.alone:
                self._metrics.catch_ups.inc()
                page = await self._reads.read(info, reader.position, events.form)
                if page.page.records or page.closed:
                    yield events.own(page)
                if page.closed:
                    return
                if page.position == reader.position:  # it is asked again in a moment
                    await self._tails.wait([reader], now_s)
                self._tails.moved(reader, page.position)
            elif now_s >= heartbeat_s:
                heartbeat_s = now_s + HEARTBEAT_S
                yield sse_frames.HEARTBEAT
            else:
                await self._tails.wait([reader], min(end_s, heartbeat_s), push=events.push if events.can_push else None)

    def frame(self, page: TailPage, form: PageForm, cursor: str | None) -> bytes:
        """The events of a page that one reader has read on its own."""
        self._metrics.records_read.inc(len(page.page.records))
        return page.events(form) + control_event(page.page, self.cursor(cursor))

    def _is_over(self, end_s: float) -> bool:
        return self._stopping.is_set() or self._clock.monotonic_s() >= end_s

    def count(self, taken: Taken) -> None:
        """Records that are sent."""
        self._metrics.records_read.inc(sum(len(page.page.records) for page in taken.pages))


class TailEvents:
    """The events of one reader of a tail. closed: it has got the last one. chunks: as of `LiveReaders.events`."""

    def __init__(
        self,
        live: LiveReaders,
        tails: SharedTails,
        reader: TailReader,
        form: PageForm,
        cursor: str | None,
        chunks: ResponseChunks | None,
    ) -> None:
        self._live = live
        self._tails = tails
        self._reader = reader
        self.form = form
        self._cursor = cursor
        self._known = known_interval(cursor)
        self._chunks = chunks
        self.closed = False

    @property
    def can_push(self) -> bool:
        return self._chunks is not None

    def own(self, page: TailPage) -> bytes:
        """What is sent of a page that the reader has read on its own."""
        return self._live.frame(page, self.form, self._cursor)

    def frames(self, taken: Taken) -> bytes:
        """What is sent of the pages; b"" where that is nothing."""
        last = len(taken.pages) - 1
        found = []
        for number, page in enumerate(taken.pages):
            own = self._live.cursor(self._cursor) if self._known >= page.interval else None
            found.append(page.frame(self.form, taken.at_end and number == last, own))
        self._live.count(taken)
        self.closed = taken.pages[-1].closed
        return found[0] if last == 0 else b"".join(found)

    def push(self) -> bool:
        """Write what came into the response, past ASGI: false where that has to be done otherwise, or was the end."""
        if self._chunks is None or not self._chunks.is_ready():
            return False
        taken = self._tails.take(self._reader)
        if not taken.pages:
            return False
        frames = self.frames(taken)
        if frames:
            self._chunks.write(frames)
        return not self.closed


def _joined(taken: Taken, form: PageForm) -> LivePage:
    """The pages as one."""
    if len(taken.pages) == 1:
        only = taken.pages[0]
        return LivePage(only.page._replace(up_to_date=only.page.up_to_date and taken.at_end), only.body(form))
    return LivePage(_concatenated(taken.pages, taken.at_end))


def _concatenated(pages: Sequence[TailPage], at_end: bool) -> StreamPage:
    last = pages[-1].page
    records = [record for each in pages for record in each.page.records]
    places = [place for each in pages for place in each.page.places]
    return StreamPage(records, places, last.position, last.up_to_date and at_end, last.closed)


def _is_elsewhere(failure: DuramenError | None) -> bool:
    """Whether the end of the log moved away from the shared read: what that means is each reader's own."""
    return failure is not None and failure.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def disconnected(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
