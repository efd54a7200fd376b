"""Requests about the writers of a stream: PUT, DELETE and GET of /v1/stream/<path>/.writer.

Who writes lies in the log: any gateway takes the writer's requests, and none keeps anything of it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import open_writer as opening
from duramen.client.protocol import producers
from duramen.client.protocol.open_writer import NO_TXID, OPEN_WRITER, WriterOpening
from duramen.client.protocol.producers import DESCRIBE_PRODUCERS
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.stream_path import topic_of
from duramen.gateway.streams.stream_position import position_after
from duramen.gateway.streams.stream_topics import StreamInfo, no_such_stream
from duramen.gateway.streams.streams import Streams
from duramen.gateway.streams.writer_headers import NAME_LENGTH_MAX, NEXT_SEQ, WRITER, OpenedWriter, opened_writer_id


class OpeningBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an opening. name: told to those who are fenced."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)] = "unnamed"


_OPENING = msgspec.json.Decoder(OpeningBody)


class OpenedBody(msgspec.Struct, omit_defaults=True):
    """An opening as it is answered. writer: what Stream-Writer says from now on; next_seq: the first Stream-Writer-Seq;
    dlsn: the end of the stream; epoch: of the leader that stored the opening.

    last_txid: the stream's last transaction id, 0 before the first; only where it has any.
    """

    writer: str
    name: str
    next_seq: int
    dlsn: str
    epoch: int
    last_txid: int | None = None


class WriterRequests:
    """Answers them. timeout_ms: how long a leader may take."""

    def __init__(self, cluster: AsyncCluster, streams: Streams, bodies: RequestBodies, timeout_ms: int) -> None:
        self._cluster = cluster
        self._streams = streams
        self._bodies = bodies
        self._timeout_ms = timeout_ms

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {"openWriter": self.open, "releaseWriter": self.release, "describeWriter": self.describe}

    async def open(self, request: Request) -> Response:
        """Fence whoever writes, and let the client write alone; answered when that is on stable storage."""
        topic = topic_of(request.path_params["path"])
        async with self._bodies.whole(request) as body:
            wish = _wish(body)
            info = await self._exclusive(topic)
            opened = await self._ask(info, wish.name, None)
            await self._streams.topics.touch(info)
        position = position_after(opened.leader_epoch, opened.end_offset - 1, opened.end_offset - 1)
        writer = OpenedWriter(opened.producer_id)
        last_txid = None if opened.last_txid == NO_TXID else opened.last_txid
        found = OpenedBody(writer.token, wish.name, 0, str(position), opened.leader_epoch, last_txid)
        headers = {
            WRITER: writer.token,
            NEXT_SEQ: "0",
            "stream-next-offset": str(position),
            "cache-control": "no-store",
        }
        return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)

    async def release(self, request: Request) -> Response:
        """Give it up: nobody writes until somebody opens it again. Once more does no harm."""
        topic = topic_of(request.path_params["path"])
        producer_id = opened_writer_id(request.headers)
        if producer_id is None:
            raise bad_request("Stream-Writer", "it is missing; it is the `writer` that PUT of .writer answered")
        await self._ask(await self._exclusive(topic), "", producer_id)
        return Response(status_code=204)

    async def describe(self, request: Request) -> Response:
        """How far a named writer is in the stream: what it needs to begin its next epoch. Without a name: `_holder`."""
        given = request.query_params.getlist("producer")
        if not given:
            return await self._holder(topic_of(request.path_params["path"]))
        if len(given) != 1 or not given[0].strip() or len(given[0]) > NAME_LENGTH_MAX:
            raise bad_request(
                "producer", f"it is the name of a writer, given once, of 1 to {NAME_LENGTH_MAX} characters"
            )
        info = await self._streams.topics.get(topic_of(request.path_params["path"]))
        epoch, number = await self._streams.progress(info, given[0])
        found = {"producer": given[0], "epoch": epoch, "next_seq": number}
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)

    async def _holder(self, topic: str) -> Response:
        """For whom an exclusive stream is open; null for nobody."""
        info = await self._exclusive(topic)
        response = await self._cluster.call(
            info.partition, DESCRIBE_PRODUCERS, producers.request(info.partition), code_of=producers.code_of
        )
        holder = producers.opened_for(response)
        found = {"exclusive": None if holder is None else {"name": holder.name, "since": holder.offset}}
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)

    async def _exclusive(self, topic: str) -> StreamInfo:
        """The stream, as the cluster has it now. Problem 404, 400."""
        info = await self._streams.topics.find(topic, fresh=True)
        if info is None:
            raise no_such_stream(topic)
        if not info.exclusive:
            raise bad_request(
                "path",
                "the stream takes records of anybody; one that PUT makes with Stream-Exclusive: true has a writer "
                "(topic setting duramen.writer.exclusive)",
            )
        return info

    async def _ask(self, info: StreamInfo, name: str, give_up: int | None) -> WriterOpening:
        """One OpenWriter. A lost answer is asked for again: another opening, of which the last one counts."""
        response = await self._cluster.call(
            info.partition,
            OPEN_WRITER,
            opening.request(info.partition, info.topic_id, name, self._timeout_ms, give_up=give_up),
            code_of=lambda response: int(response.error_code),
        )
        try:
            return opening.parsed(response)
        except KafkaError as error:
            if error.code == ErrorCode.STREAM_CLOSED:
                raise await self._streams.closed_problem(info) from None
            raise


def _wish(body: bytes) -> OpeningBody:
    return decoded_json(body, _OPENING, "body", '{"name": "…"}') if body else OpeningBody()
