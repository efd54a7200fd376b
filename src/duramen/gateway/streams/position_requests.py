"""Requests about positions of a stream: where one is, and truncation in front of one."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.protocol.list_offsets import EARLIEST
from duramen.client.protocol.positions import AtOffset, BelowStartError, LogPlace
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.position_wish import PositionWish, asked_position, position_before
from duramen.gateway.streams.stream_path import topic_of
from duramen.gateway.streams.stream_topics import NO_TXIDS, StreamInfo, no_such_stream
from duramen.gateway.streams.streams import Streams
from duramen.gateway.tails.old_reads import OldReads


class PlaceBody(msgspec.Struct, omit_defaults=True):
    """A place as it is answered. at_end: nothing has been written there yet; then there is neither time nor id.

    time: the record's timestamp, ms since 1970; txid: instead of it in streams with transaction ids.
    """

    offset: int
    dlsn: str
    epoch: int
    at_end: bool = False
    time: int | None = None
    txid: int | None = None


class PositionRequests:
    """Answers them. reads: get to know what is truncated."""

    def __init__(self, streams: Streams, reads: OldReads, bodies: RequestBodies) -> None:
        self._streams = streams
        self._reads = reads
        self._bodies = bodies

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"findPosition": self.find, "truncateStream": self.truncate}

    async def find(self, request: Request) -> Response:
        """Where a position is."""
        topic = topic_of(request.path_params["path"])
        wish = asked_position(request.query_params.multi_items())
        info = await self._streams.topics.get(topic)
        _check_kind(info, wish)
        return await self._place(info, await self._streams.locate(info, wish.position))

    async def truncate(self, request: Request) -> Response:
        """Delete what lies in front of a position; it is answered when that is on stable storage."""
        topic = topic_of(request.path_params["path"])
        async with self._bodies.whole(request) as body:
            wish = position_before(body)
            info = await self._streams.topics.find(topic, fresh=True)
            if info is None:
                raise no_such_stream(topic)
            _check_kind(info, wish)
            try:
                place = await self._streams.locate(info, wish.position)
            except BelowStartError as error:
                place = error.first  # it was done before
            else:
                start = await self._streams.truncate(info, place.offset)
                self._reads.truncated(info, start)
                if start != place.offset:
                    place = await self._streams.locate(info, AtOffset(EARLIEST))
        return await self._place(info, place)

    async def _place(self, info: StreamInfo, place: LogPlace) -> Response:
        timestamp = None if place.is_end else await self._streams.timestamp(info, place.offset)
        has_txids = info.txid != NO_TXIDS
        body = PlaceBody(
            place.offset,
            str(place.dlsn),
            place.dlsn.leader_epoch,
            place.is_end,
            None if has_txids else timestamp,
            timestamp if has_txids else None,
        )
        headers = {"cache-control": "no-store", "stream-id": info.topic_id.hex()}
        return Response(msgspec.json.encode(body), media_type="application/json", headers=headers)


def _check_kind(info: StreamInfo, wish: PositionWish) -> None:
    """Problem 400 where the timestamps of a stream are not what they are asked for."""
    if wish.kind == "txid" and info.txid == NO_TXIDS:
        raise bad_request(
            "txid", "the stream has no transaction ids (topic setting duramen.txid); time finds timestamps"
        )
    if wish.kind == "time" and info.txid == "application":
        raise bad_request("time", "the stream's timestamps are transaction ids of its application; txid finds them")
