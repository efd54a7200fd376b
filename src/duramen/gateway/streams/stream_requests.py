"""Requests on a stream, as Durable Streams has them: PUT, POST, HEAD, DELETE and GET of /v1/stream/<path>."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from duramen.client.protocol.positions import BelowStartError
from duramen.dlsn import Dlsn
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.http_protocol import chunks_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.cache_lifetime import cache_control, check_stream_id, is_listed
from duramen.gateway.streams.stream_appends import AppendWish
from duramen.gateway.streams.stream_expiry import rfc_3339
from duramen.gateway.streams.stream_page import StreamPage, empty_page
from duramen.gateway.streams.stream_path import topic_of
from duramen.gateway.streams.stream_position import BEGINNING, NOW, START, parse_position_in
from duramen.gateway.streams.stream_topics import NO_TXIDS, StreamInfo, no_such_stream
from duramen.gateway.streams.stream_wishes import (
    CLOSED,
    EXCLUSIVE,
    TRUE,
    TXID,
    append_steps,
    asked_form,
    check_first_records,
    check_same,
    check_takes_body,
    is_closing,
    messages_of,
    new_records,
    wanted_settings,
)
from duramen.gateway.streams.streams import StreamEnd, Streams
from duramen.gateway.streams.writer_headers import NEXT_SEQ, OpenedWriter
from duramen.gateway.tails.live_readers import LiveReaders
from duramen.gateway.tails.old_reads import OldReads
from duramen.gateway.tails.page_forms import MessageForm, PageForm
from duramen.gateway.tails.record_form import record_form
from duramen.gateway.tails.record_match import MatchForm, RecordMatch, record_match
from duramen.gateway.writes.partition_writes import LAST_TXID

NEXT_OFFSET: Final = "stream-next-offset"
UP_TO_DATE: Final = "stream-up-to-date"
CURSOR: Final = "stream-cursor"
STREAM_ID: Final = "stream-id"
ADVANCED_TO: Final = "stream-advanced-to"


class ReadRequest(NamedTuple):
    """What a GET asks for. live: "", "long-poll" or "sse"; offset: the text that was given, -1 for none.

    advance: where the records there were truncated, to begin with the first one that there is. format: "" for the
    stream's own, or ndjson with an encoding. stream_id: which stream of the name is meant. match: the records that are
    wanted.
    """

    offset: str
    live: str
    cursor: str | None
    advance: bool
    format: str
    encoding: str | None
    stream_id: str | None
    match: RecordMatch | None


class StreamRequests:
    """Answers requests on streams; `live` those that follow one."""

    def __init__(
        self,
        streams: Streams,
        reads: OldReads,
        bodies: RequestBodies,
        live: LiveReaders,
        clock: GatewayClock,
        metrics: GatewayMetrics,
    ) -> None:
        self._streams = streams
        self._reads = reads
        self._bodies = bodies
        self._live = live
        self._clock = clock
        self._metrics = metrics

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {
            "createStream": self.put,
            "appendToStream": self.post,
            "readStream": self.get,
            "describeStream": self.head,
            "deleteStream": self.delete,
        }

    # ---- there is a stream -----------------------------------------------------------------------------------

    async def put(self, request: Request) -> Response:
        """Make a stream, or find the same one."""
        topic = topic_of(request.path_params["path"])
        headers = request.headers
        wanted = wanted_settings(headers, self._clock.now_ms())
        _refuse_forks(headers)
        closing = is_closing(headers)
        async with self._bodies.whole(request) as body:
            messages = messages_of(body, wanted.content_type) if body else []
            check_first_records(wanted, closes=closing, has_body=bool(messages))
            records = new_records(messages, self._clock.now_ms())
            info, made = await self._streams.topics.create(topic, wanted)
            if records:
                check_takes_body(info)
            if made:
                end = StreamEnd(START, False)
            else:
                end = await self._streams.end(info)
                check_same(info, wanted)
            # A PUT with a body that was cut short in the middle has left an empty stream: this one completes it.
            receipt = {}
            if end[:2] == (START, False) and (records or (made and closing)):
                appended = await self._streams.append(info, AppendWish(records, closing, START))
                end = StreamEnd(appended.position, appended.closed)
                receipt = appended.receipt
                self._metrics.records_written.inc(len(records))
        if end.closed != closing:
            raise ProblemError(
                409, "exists", f"the stream is there, and {'closed' if end.closed else 'open'}", _closed(end.closed)
            )
        found = {
            "content-type": info.content_type,
            NEXT_OFFSET: str(end.position),
            STREAM_ID: info.topic_id.hex(),
            **_closed(end.closed),
            **receipt,
        }
        if made:
            found["location"] = str(request.url.replace(query="", fragment=""))
        return Response(status_code=201 if made else 200, headers=found)

    async def head(self, request: Request) -> Response:
        """Type, end and expiry; it does not renew a TTL."""
        info = await self._streams.topics.get(topic_of(request.path_params["path"]))
        end = await self._streams.end(info)
        headers = {
            "content-type": info.content_type,
            NEXT_OFFSET: str(end.position),
            STREAM_ID: info.topic_id.hex(),
            "cache-control": "no-store",
        }
        if info.expiry.ttl_ms is not None:
            headers["stream-ttl"] = str(info.expiry.ttl_ms // 1000)
        elif info.expiry.at_ms is not None:
            headers["stream-expires-at"] = rfc_3339(info.expiry.at_ms)
        if info.txid != NO_TXIDS:
            headers |= {TXID: info.txid, LAST_TXID: str(end.last_timestamp)}
        if info.exclusive:
            headers[EXCLUSIVE] = TRUE
        if end.closed:
            headers[CLOSED] = TRUE
        return Response(headers=headers)

    async def delete(self, request: Request) -> Response:
        """Delete the stream with all that is in it."""
        topic = topic_of(request.path_params["path"])
        info = await self._streams.topics.find(topic, fresh=True)
        if info is None or not await self._streams.topics.delete(info):
            raise no_such_stream(topic)
        return Response(status_code=204)

    # ---- writing ---------------------------------------------------------------------------------------------

    async def post(self, request: Request) -> Response:
        """Append a body: one record, in a JSON stream one for each message, as NDJSON one for each line."""
        topic = topic_of(request.path_params["path"])
        async with self._bodies.whole(request) as body:
            info = await self._streams.topics.get(topic)
            check_stream_id(info, request.query_params.get("stream_id"))
            wish = await self._wish(info, request, body)
            appended = await self._streams.append(info, wish)
            await self._streams.topics.touch(info)
        if not appended.duplicate:
            self._metrics.records_written.inc(len(wish.records))
        answer = {NEXT_OFFSET: str(appended.position), **_closed(appended.closed), **appended.receipt}
        writer = wish.writer
        known = appended.duplicate and appended.expected_sequence >= 0
        if isinstance(writer, OpenedWriter):
            if wish.records:
                following = writer.sequence + len(wish.records)
                answer[NEXT_SEQ] = str(writer.next(appended.expected_sequence) if known else following)
        elif writer is not None:
            answer |= writer.headers(writer.accepted(appended.expected_sequence) if known else None)
        is_new = writer is not None and wish.records and not appended.duplicate
        return Response(status_code=200 if is_new else 204, headers=answer)

    async def _wish(self, info: StreamInfo, request: Request, body: bytes) -> AppendWish:
        """What a POST asks for. Problem 400, 409."""
        try:
            steps = append_steps(info, request.headers, request.query_params, body, self._clock.now_ms())
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    wish: AppendWish = end.value
                    return wish
                await asyncio.sleep(0)
        except ProblemError as problem:
            if problem.code == "exists" and (await self._streams.end(info)).closed:
                raise await self._streams.closed_problem(info) from None
            raise

    # ---- reading ---------------------------------------------------------------------------------------------

    async def get(self, request: Request) -> Response:
        """Read: what there is, or what comes (long-poll, SSE)."""
        topic = topic_of(request.path_params["path"])
        asked = _read_request(request)
        info = await self._streams.topics.get(topic)
        check_stream_id(info, asked.stream_id)
        await self._streams.topics.touch(info)
        try:
            return await self._read(request, info, asked)
        except BelowStartError as error:
            if not asked.advance and asked.offset != BEGINNING:
                raise
            first = str(error.first.dlsn)
        answer = await self._read(request, info, asked._replace(offset=first, stream_id=None))
        if asked.advance:
            answer.headers[ADVANCED_TO] = first
        return answer

    async def _read(self, request: Request, info: StreamInfo, asked: ReadRequest) -> Response:
        form = _form(info, asked)
        if asked.offset == NOW:
            end = await self._streams.end(info)
            position, closed = end.position, end.closed
        else:
            position = START if asked.offset == BEGINNING else parse_position_in(asked.offset, info.topic_id.hex())
            closed = False
        if asked.live == "sse":
            return await self._sse(request, info, position, form, asked.cursor)
        if asked.live == "long-poll":
            return await self._long_poll(request, info, position, form, asked)
        if asked.offset == NOW:
            page = empty_page(position, closed=closed)
            return self._page(request, info, asked, form, position, page, lambda: form.body(page))
        found = await self._reads.read(info, position, form)
        return self._page(request, info, asked, form, position, found.page, lambda: found.body(form))

    def _page(
        self,
        request: Request,
        info: StreamInfo,
        asked: ReadRequest,
        form: PageForm,
        position: Dlsn,
        page: StreamPage,
        body: Callable[[], bytes],
    ) -> Response:
        headers = self._read_headers(page, asked.cursor)
        headers["content-type"] = form.media_type
        headers[STREAM_ID] = info.topic_id.hex()
        if asked.offset == NOW:
            headers["cache-control"] = "no-store"
        else:
            closed = ":c" if page.closed else ""
            named = f":{form.name}" if form.name else ""
            etag = f'"{info.topic_id.hex()}{named}:{asked.offset}:{page.position}{closed}"'
            headers["etag"] = etag
            headers["cache-control"] = cache_control(info, position, page, asked.stream_id)
            if is_listed(etag, request.headers.get("if-none-match")):
                return Response(status_code=304, headers=headers)
        self._metrics.records_read.inc(len(page.records))
        return Response(body(), headers=headers)

    async def _long_poll(
        self, request: Request, info: StreamInfo, position: Dlsn, form: PageForm, asked: ReadRequest
    ) -> Response:
        page, body = await self._live.poll(request, info, position, form)
        if page.records:
            return self._page(
                request, info, asked, form, position, page, lambda: form.body(page) if body is None else body
            )
        headers = self._read_headers(page._replace(up_to_date=True), asked.cursor)
        headers |= {STREAM_ID: info.topic_id.hex(), "cache-control": "no-store"}
        return Response(status_code=204, headers=headers)

    async def _sse(
        self, request: Request, info: StreamInfo, position: Dlsn, form: PageForm, cursor: str | None
    ) -> Response:
        page = await self._reads.read(info, position, form)
        headers = {
            "content-type": "text/event-stream",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            STREAM_ID: info.topic_id.hex(),
        }
        if not form.is_text:
            headers["stream-sse-data-encoding"] = "base64"
        self._live.check()
        events = self._live.events(info, page, form, cursor, chunks_of(request.scope))
        return StreamingResponse(events, headers=headers)

    def _read_headers(self, page: StreamPage, cursor: str | None) -> dict[str, str]:
        headers = {NEXT_OFFSET: str(page.position)}
        if page.up_to_date:
            headers[UP_TO_DATE] = TRUE
        if page.closed:
            headers[CLOSED] = TRUE
        else:
            headers[CURSOR] = self._live.cursor(cursor)
        return headers


def _read_request(request: Request) -> ReadRequest:
    query = request.query_params
    given = query.getlist("offset")
    if len(given) > 1:
        raise bad_request("offset", "it is given twice")
    live = query.get("live", "")
    if live not in ("", "long-poll", "sse"):
        raise bad_request("live", "it is neither long-poll nor sse")
    advance = query.get("on_truncated", "fail")
    if advance not in ("fail", "advance"):
        raise bad_request("on_truncated", "it is neither fail nor advance")
    resumed = request.headers.get("last-event-id") if live == "sse" else None
    offset = resumed or (given[0] if given else None)
    if offset is None:
        if live:
            raise bad_request("offset", f"live={live} needs it; -1 is the beginning, now the end")
        offset = BEGINNING
    if offset not in (BEGINNING, NOW):
        parse_position_in(offset, "")
    form, encoding = asked_form(query)
    match = record_match(query.multi_items())
    return ReadRequest(
        offset, live, query.get("cursor"), advance == "advance", form, encoding, query.get("stream_id"), match
    )


def _form(info: StreamInfo, asked: ReadRequest) -> PageForm:
    form: PageForm = MessageForm(info.content_type)
    if asked.format:
        form = record_form(asked.encoding, names_txid=info.txid != NO_TXIDS)
    return form if asked.match is None else MatchForm(form, asked.match)


def _closed(closed: bool) -> dict[str, str]:
    return {CLOSED: TRUE} if closed else {}


def _refuse_forks(headers: Mapping[str, str]) -> None:
    if any(name.startswith("stream-fork") for name in headers):
        raise ProblemError(501, "not-served", "Stream-Forked-From: streams cannot be forked")
