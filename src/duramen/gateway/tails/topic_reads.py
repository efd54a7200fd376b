"""Reads of topics: GET of /v1/topics/{topic}/records, a page, a long-poll or events from all partitions."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from duramen.errors import DuramenError
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.http_protocol import ResponseChunks, aborted_after, chunks_of
from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.report_response import NDJSON
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.cache_lifetime import is_listed
from duramen.gateway.streams.stream_position import BEGINNING, NOW
from duramen.gateway.tails import sse_frames
from duramen.gateway.tails.followed_partitions import FollowedPartitions
from duramen.gateway.tails.live_readers import HEARTBEAT_S, RETRY_MS, ReadLimits, disconnected
from duramen.gateway.tails.reader_start import ReaderStart
from duramen.gateway.tails.record_match import record_match
from duramen.gateway.tails.topic_readers import TopicReaders

_LIVE: Final = ("", "long-poll", "sse")
_EVENTS: Final = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


class TopicReadRequest(NamedTuple):
    """What a GET asks for."""

    start: ReaderStart
    live: str


class TopicReads:
    """Answers reads of topics. page_max_bytes: of a page, or one portion of a partition if that is more."""

    def __init__(
        self,
        topics: TopicReaders,
        allowance: Allowance,
        limits: ReadLimits,
        page_max_bytes: int,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._topics = topics
        self._allowance = allowance
        self._limits = limits
        self._page_max_bytes = page_max_bytes
        self._clock = clock
        self._metrics = metrics
        self._stopping = stopping

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"readRecords": self.get}

    async def get(self, request: Request) -> Response:
        """Read: what there is, or what comes (long-poll, SSE)."""
        asked = _asked(request)
        if asked.live:
            self._allowance.check()
        topic = request.path_params["topic"]
        if asked.live == "sse" and asked.start.position not in (BEGINNING, NOW):
            await self._check(topic, asked.start)
        followed = await self._topics.topic(topic, asked.start._replace(joins=bool(asked.live)))
        if asked.live == "sse":
            return StreamingResponse(self._events(followed, chunks_of(request.scope)), headers=_EVENTS)
        try:
            if asked.live == "long-poll":
                body = await self._polled(request, followed)
            else:
                body = await followed.page(self._page_max_bytes)
        finally:
            followed.leave()
        return _page(request, followed, asked.start.position, body, is_poll=bool(asked.live))

    async def _check(self, topic: str, start: ReaderStart) -> None:
        """What a reader of events would never learn, once its answer has begun. Problem 409, 410."""
        look = await self._topics.topic(topic, start._replace(joins=False))
        try:
            await look.page(self._page_max_bytes)
        finally:
            look.leave()

    async def _polled(self, request: Request, followed: FollowedPartitions) -> bytes:
        end_s = self._clock.monotonic_s() + self._limits.long_poll_s
        left = asyncio.ensure_future(disconnected(request))
        try:
            with self._allowance.one(), self._metrics.readers.track_inprogress():
                while True:
                    body = await followed.page(self._page_max_bytes)
                    if body or followed.closed or left.done() or self._is_over(end_s):
                        return body
                    await followed.wait(self._clock.monotonic_s(), end_s, left)
        finally:
            left.cancel()

    async def _events(self, followed: FollowedPartitions, chunks: ResponseChunks | None) -> AsyncGenerator[bytes]:
        """Events; they end with all partitions, the time, or an error, which the reader gets to know when it connects
        again from its position."""
        end_s = self._clock.monotonic_s() + self._limits.sse_s
        sent, has_caught_up = "", False
        with (
            self._allowance.one(),
            self._metrics.readers.track_inprogress(),
            aborted_after(chunks, 2 * self._limits.sse_s),
        ):
            try:
                yield sse_frames.retry(random.randint(*RETRY_MS))
                heartbeat_s = 0.0
                while not self._is_over(end_s):
                    portion = await followed.next()
                    now_s = self._clock.monotonic_s()
                    if portion is not None and portion.records:
                        sent, heartbeat_s = followed.position, now_s + HEARTBEAT_S
                        yield sse_frames.lines_event(portion.lines, sent) + _control(followed, sent)
                        has_caught_up = followed.up_to_date
                    elif followed.closed or now_s >= heartbeat_s or (followed.up_to_date and not has_caught_up):
                        heartbeat_s = now_s + HEARTBEAT_S
                        is_news = followed.position != sent or followed.closed or followed.up_to_date > has_caught_up
                        sent, has_caught_up = followed.position, followed.up_to_date
                        yield _control(followed, sent) if is_news else sse_frames.HEARTBEAT
                    if followed.closed:
                        return
                    if portion is None:
                        await followed.wait(now_s, min(end_s, heartbeat_s), None)
            except (DuramenError, ProblemError):
                return
            finally:
                followed.leave()

    def _is_over(self, end_s: float) -> bool:
        return self._stopping.is_set() or self._clock.monotonic_s() >= end_s


def _control(followed: FollowedPartitions, position: str) -> bytes:
    return sse_frames.control_event(
        sse_frames.ControlData(position, up_to_date=followed.up_to_date, stream_closed=followed.closed), position
    )


def _page(request: Request, followed: FollowedPartitions, asked: str, body: bytes, *, is_poll: bool) -> Response:
    position = followed.position
    headers = {"content-type": NDJSON, "stream-next-offset": position}
    if followed.up_to_date:
        headers["stream-up-to-date"] = "true"
    if followed.closed:
        headers["stream-closed"] = "true"
    if followed.advanced and asked != BEGINNING:
        headers["stream-advanced"] = "true"
    if is_poll and not body:
        return Response(status_code=204, headers={**headers, "cache-control": "no-store"})
    if asked == NOW:
        headers["cache-control"] = "no-store"
    else:
        shown = f"{request.url.query} {position} {followed.closed}"
        etag = f'"{hashlib.sha256(shown.encode()).hexdigest()[:32]}"'
        headers |= {"etag": etag, "cache-control": "no-cache"}
        if is_listed(etag, request.headers.get("if-none-match")):
            return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


def _asked(request: Request) -> TopicReadRequest:
    query = request.query_params
    live = query.get("live", "")
    if live not in _LIVE:
        raise bad_request("live", "it is neither long-poll nor sse")
    if query.get("format", "ndjson") != "ndjson":
        raise bad_request("format", "records of a topic are read as ndjson")
    advance = query.get("on_truncated", "fail")
    if advance not in ("fail", "advance"):
        raise bad_request("on_truncated", "it is neither fail nor advance")
    given = query.getlist("offset")
    if len(given) > 1:
        raise bad_request("offset", "it is given twice")
    resumed = request.headers.get("last-event-id") if live == "sse" else None
    position = resumed or (given[0] if given else "")
    if live and not position:
        raise bad_request("offset", f"live={live} needs it; -1 is the beginning, now the end")
    start = ReaderStart(
        position or BEGINNING,
        "offset",
        query.get("encoding"),
        advance == "advance",
        record_match(query.multi_items()),
        _partition(query.get("partition")),
        bool(live),
    )
    return TopicReadRequest(start, live)


def _partition(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise bad_request("partition", "it is the number of a partition, from 0")
    return int(text)
