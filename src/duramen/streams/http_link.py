"""Streams over HTTP, by way of a gateway: the standard library's client, so that nothing has to be installed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast
from urllib.parse import quote, urlencode
from uuid import uuid4

from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.positions import AtOffset, Position
from duramen.client.protocol.producers import ProducerProgress
from duramen.client.protocol.stream_defaults import APPEND_RECORDS_MAX
from duramen.dlsn import FIRST, Dlsn
from duramen.errors import ErrorCode, KafkaError, TopicReplacedError
from duramen.model import is_named, named_producer_id
from duramen.streams.errors import AppendTooLargeError
from duramen.streams.gateway_connection import GatewayConnection
from duramen.streams.gateway_login import GatewayLogin
from duramen.streams.http_namespaces import HttpNamespaces, pages
from duramen.streams.http_words import (
    GatewayAnswer,
    GatewayError,
    append_answer,
    append_refusal,
    body_too_large,
    lines_of,
    lookup_refusal,
    moved_answer,
    spot_in,
    stretch_in,
)
from duramen.streams.link import SETTLED, AppendTerms, StreamKind, StreamTail, TxidKind, WriterTurn
from duramen.streams.records import Row, StreamSpot, Stretch
from duramen.wire.batch import MAX_SEQUENCE
from duramen.wire.conditional_answer import ConditionalAnswer

NDJSON: Final = {"Content-Type": "application/x-ndjson"}
JSON: Final = {"Content-Type": "application/json"}
_RECORDS: Final = "format=ndjson&encoding=base64"
_LONG_POLL_S: Final = 60.0


class HttpLink:
    """A gateway. For one thread at a time."""

    def __init__(self, host: str, port: int, timeout_s: float, login: GatewayLogin) -> None:
        self._gateway = GatewayConnection(host, port, timeout_s, login)
        self.namespaces = HttpNamespaces(self._gateway)
        self._turns: dict[str, WriterTurn] = {}
        """Under which name records without a writer are appended to a topic, so that they may be sent again."""
        self._ends: dict[str, Dlsn] = {}
        """Where this link's last append to a topic ended."""
        self._polled: tuple[str, StreamSpot, Stretch] | None = None

    async def names(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `StreamLink`."""
        path = f"/v1/namespaces/{namespace}/streams" if namespace else "/v1/namespaces/streams"
        try:
            return pages(self._gateway, path, "streams", prefix, after, limit)
        except GatewayError as error:
            if error.problem == "no-such-namespace":
                return []
            raise

    async def exists(self, topic: str) -> bool:
        """See `StreamLink`."""
        try:
            self._gateway.ask("HEAD", _path(topic))
        except GatewayError as error:
            if error.answer.status == 404:
                return False
            raise
        return True

    async def stream_id(self, topic: str) -> str:
        """See `StreamLink`."""
        return self._gateway.ask("HEAD", _path(topic)).headers.get("stream-id", "")

    async def create(self, topic: str, settings: Mapping[str, str]) -> str:
        """See `StreamLink`."""
        given = {"Content-Type": "application/octet-stream", "Stream-Settings": json.dumps(dict(settings))}
        made = self._gateway.ask("PUT", _path(topic), headers=given)
        if made.status == 200:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic} exists")
        return made.headers.get("stream-id", "")

    async def delete(self, topic: str) -> None:
        """See `StreamLink`."""
        self._ends.pop(topic, None)
        self._turns.pop(topic, None)
        self._gateway.ask("DELETE", _path(topic))

    # ---- writing ---------------------------------------------------------------------------------------------

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer:
        """See `StreamLink`. What has no writer is appended under a name of this link's own."""
        headers = {"Stream-Closed": "true"} if terms.close else {}
        if terms.expected is not None:
            wanted = terms.expected
            position = wanted if isinstance(wanted, Dlsn) else self._expected(topic, wanted)
            if position is None:
                end = (await self.state(topic)).end
                text = f"the stream ends at {end}, not at {terms.expected}"
                return moved_answer(text, end)
            headers["Stream-Expected-Offset"] = str(position)
        turn = terms.writer
        if rows is None:
            if terms.closer >= 0:
                headers["Stream-Writer"] = str(terms.closer)
            return await self._post(topic, [], headers, "")
        if len(rows) > APPEND_RECORDS_MAX:
            text = f"{topic}: {len(rows)} records; a gateway takes at most {APPEND_RECORDS_MAX} at a time"
            raise AppendTooLargeError(text, len(rows))
        if turn is not None:
            return await self._post(topic, rows, headers | _writer_headers(turn), terms.stream_id)
        own = self._turns.pop(topic, None) or _turn_of_its_own()  # put back where it is known what became of it
        answer = await self._post(topic, rows, headers | _writer_headers(own), terms.stream_id)
        if answer.code in SETTLED:
            step = 1 if answer.code is ErrorCode.NONE else 0
            self._turns[topic] = own._replace(sequence=(own.sequence + step) & MAX_SEQUENCE)
        return answer._replace(duplicate=False)

    async def _post(
        self, topic: str, rows: Sequence[Row], headers: Mapping[str, str], stream_id: str
    ) -> ConditionalAnswer:
        """TopicReplacedError where the name is not that stream's any more."""
        body = lines_of(rows)
        path = f"{_path(topic)}?{_RECORDS}{_meant(stream_id)}"
        try:
            found = self._gateway.ask("POST", path, body, {**headers, **(NDJSON if body else {})})
        except GatewayError as error:
            # A gateway that has not seen it yet finds no such stream at the leader.
            if stream_id and error.problem in ("position-diverged", "no-such-stream"):
                await self._check_still(topic, stream_id, error)
            if error.problem == "body-too-large":
                raise body_too_large(topic, error, len(rows), len(body)) from error
            return append_refusal(error)
        self._ends[topic] = found.next
        return append_answer(found, len(rows))

    def _expected(self, topic: str, offset: int) -> Dlsn | None:
        """The position of the offset where a stream has to end; None where there is none, so that it ends elsewhere."""
        known = self._ends.get(topic)
        if known is not None and known.offset == offset:
            return known
        if offset == 0:
            return FIRST
        try:
            return spot_in(self._gateway.ask("GET", f"{_path(topic)}/.position?offset={offset}").json()).dlsn
        except GatewayError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return None

    async def open_writer(self, topic: str, name: str) -> int:
        """See `StreamLink`. Where no answer comes another one is opened."""
        return int(self._gateway.ask("PUT", f"{_path(topic)}/.writer", _json({"name": name}), JSON).json()["writer"])

    async def release_writer(self, topic: str, name: str, producer_id: int) -> None:
        """See `StreamLink`."""
        self._gateway.ask("DELETE", f"{_path(topic)}/.writer", headers={"Stream-Writer": str(producer_id)})

    async def progress(self, topic: str, name: str, producer_id: int) -> ProducerProgress:
        """See `StreamLink`."""
        found = self._gateway.ask("GET", f"{_path(topic)}/.writer?{urlencode({'producer': name})}").json()
        return ProducerProgress(found["epoch"], found["next_seq"])

    # ---- reading ---------------------------------------------------------------------------------------------

    async def locate(self, topic: str, wanted: Position) -> StreamSpot:
        """See `StreamLink`."""
        if isinstance(wanted, Dlsn):
            query = f"dlsn={quote(str(wanted))}"
        elif isinstance(wanted, AtOffset):
            query = f"offset={ {EARLIEST: '-1', LATEST: 'now'}.get(wanted.offset, str(wanted.offset)) }"
        else:
            kind = "time" if (await self.kind(topic)).txids == "none" else "txid"
            query = f"{kind}={wanted.timestamp}"
        try:
            found = self._gateway.ask("GET", f"{_path(topic)}/.position?{query}")
            return spot_in(found.json(), found.headers.get("stream-id", ""))
        except GatewayError as error:
            shown = wanted if isinstance(wanted, Dlsn) else wanted.offset if isinstance(wanted, AtOffset) else -1
            raise lookup_refusal(error, shown) from error

    async def fetch(self, topic: str, spot: StreamSpot) -> Stretch:
        """See `StreamLink`."""
        polled, self._polled = self._polled, None
        if polled is not None and polled[:2] == (topic, spot):
            return polled[2]
        return stretch_in(await self._read(topic, spot, "", 0.0), spot)

    async def wait(self, topic: str, spot: StreamSpot) -> None:
        """See `StreamLink`. As long as the gateway lets it wait; what comes is what `fetch` gives next."""
        found = await self._read(topic, spot, "&live=long-poll", _LONG_POLL_S)
        if found.body or found.is_closed:
            self._polled = (topic, spot, stretch_in(found, spot))

    async def _read(self, topic: str, spot: StreamSpot, live: str, waits_s: float) -> GatewayAnswer:
        """TopicReplacedError where the name is another stream's by now."""
        query = f"{_RECORDS}{live}&offset={quote(str(spot.dlsn))}{_meant(spot.stream_id)}"
        try:
            return self._gateway.ask("GET", f"{_path(topic)}?{query}", waits_s=waits_s)
        except GatewayError as error:
            if spot.stream_id and error.problem == "position-diverged":
                await self._check_still(topic, spot.stream_id, error)
            raise

    async def _check_still(self, topic: str, stream_id: str, error: GatewayError) -> None:
        """TopicReplacedError where the name is another stream's by now, which the error may come from."""
        if await self.stream_id(topic) != stream_id:
            self._ends.pop(topic, None)
            raise TopicReplacedError(error.message) from error

    async def state(self, topic: str) -> StreamTail:
        """See `StreamLink`."""
        found = self._gateway.ask("HEAD", _path(topic))
        return StreamTail(found.next.offset, found.is_closed, int(found.headers.get("stream-last-txid", "-1")))

    async def kind(self, topic: str) -> StreamKind:
        """See `StreamLink`."""
        found = self._gateway.ask("HEAD", _path(topic)).headers
        return StreamKind(cast(TxidKind, found.get("stream-txid", "none")), found.get("stream-id", ""))

    async def settings(self, topic: str) -> Mapping[str, str]:
        """See `StreamLink`. By the API that the gateway shares with Confluent's."""
        (cluster,) = self._gateway.ask("GET", "/v3/clusters").json()["data"]
        path = f"/v3/clusters/{quote(cluster['cluster_id'], safe='')}/topics/{topic}/configs"
        found = self._gateway.ask("GET", path).json()["data"]
        return {each["name"]: each["value"] for each in found if each["value"] is not None}

    async def truncate(self, topic: str, before: int) -> int:
        """See `StreamLink`."""
        body = _json({"before": {"offset": before}})
        return int(self._gateway.ask("POST", f"{_path(topic)}/.truncate", body, JSON).json()["offset"])

    async def close(self) -> None:
        """See `StreamLink`."""
        self._gateway.close()


def _path(topic: str) -> str:
    return "/v1/stream/" + topic.replace(".", "/")


def _meant(stream_id: str) -> str:
    return f"&stream_id={stream_id}" if stream_id else ""


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body).encode()


def _turn_of_its_own() -> WriterTurn:
    name = f"library-{uuid4().hex}"
    return WriterTurn(name, named_producer_id(name), 0, 0)


def _writer_headers(turn: WriterTurn) -> dict[str, str]:
    if not is_named(turn.producer_id):
        return {"Stream-Writer": str(turn.producer_id), "Stream-Writer-Seq": str(turn.sequence)}
    return {"Producer-Id": turn.name, "Producer-Epoch": str(turn.epoch), "Producer-Seq": str(turn.sequence)}
