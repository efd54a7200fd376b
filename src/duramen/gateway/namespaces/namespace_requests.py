"""Requests on namespaces: /v1/namespaces, one of them, and the streams of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio.async_namespaces import AsyncNamespaces
from duramen.client.protocol import namespaces as spaces
from duramen.client.protocol.metadata import TopicMetadata
from duramen.client.protocol.namespaces import NamespaceChange, NamespaceRecord
from duramen.client.protocol.stream_names import name_of
from duramen.errors import KafkaError
from duramen.gateway.access.principal import sender_of
from duramen.gateway.access.request_right import not_allowed
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.namespaces.namespace_bodies import (
    ListedNamespace,
    ListedStream,
    NamespaceList,
    ShownNamespace,
    StreamList,
)
from duramen.gateway.namespaces.namespace_wish import is_recursive, named, page_of, wanted_defaults, wanted_page
from duramen.gateway.routes.route import Handler
from duramen.gateway.streams.stream_expiry import rfc_3339
from duramen.gateway.streams.stream_topics import StreamInfo, StreamTopics
from duramen.model import TopicId
from duramen.wire.batch import NewRecord

_LOOKED_AT_ONCE: Final = 500
_ROUNDS: Final = 3
_NOT_STORED: Final = {"cache-control": "no-store"}


class NamespaceRequests:
    """Answers them."""

    def __init__(
        self, namespaces: AsyncNamespaces, topics: StreamTopics, bodies: RequestBodies, clock: GatewayClock
    ) -> None:
        self._namespaces = namespaces
        self._topics = topics
        self._bodies = bodies
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {
            "listNamespaces": self.list,
            "putNamespace": self.put,
            "describeNamespace": self.get,
            "deleteNamespace": self.delete,
            "listStreams": self.streams,
            "listAllStreams": self.streams,
        }

    async def list(self, request: Request) -> Response:
        """All namespaces, by pages: with what is written of those that may be read, and the names of those in which a
        stream may be read."""
        wish = wanted_page(request.query_params.multi_items())
        may_read = sender_of(request.scope).may_read
        records, there = await self._look()
        known = {path: record for path, record in records.items() if may_read(_prefix_of(path))}
        found = spaces.listed(known, [topic.name for topic in there if may_read(topic.name)])
        page, more = page_of(found, wish)
        return _answer(NamespaceList([_listed(found[path]) for path in page], more))

    async def put(self, request: Request) -> Response:
        """Make a namespace, or set its defaults."""
        path = named(request.path_params["path"])
        async with self._bodies.whole(request) as body:
            defaults = wanted_defaults(body)
        inherited = _inherited(path, await self._namespaces.records())
        if defaults:
            await self._topics.check_settings(path, {**(inherited or {}), **defaults})
        change: NamespaceChange | None = None

        only_new = request.headers.get("if-none-match", "").strip() == "*"

        def decide(records: Mapping[str, NamespaceRecord]) -> Sequence[NewRecord]:
            nonlocal change
            if only_new and path in records:
                raise ProblemError(409, "exists", f"the namespace {path} is there; If-None-Match: * wants a new one")
            change = spaces.put(path, defaults, records, self._clock.now_ms())
            return change.rows

        await self._namespaces.change(decide)
        assert change is not None
        return _answer(_shown(change.record, inherited), 201 if change.made else 200)

    async def get(self, request: Request) -> Response:
        """One namespace, and what it inherits."""
        path = named(request.path_params["path"])
        records, there = await self._look()
        found = spaces.described(path, records, [topic.name for topic in there])
        if found is None:
            raise _no_such_namespace(path)
        return _answer(_shown(found, _inherited(path, records)))

    async def streams(self, request: Request) -> Response:
        """The streams of a namespace, by pages; of the root without one. Who may not read all of it gets those that
        they may, and a refusal where there are none, whether there is such a namespace or not."""
        path = named(request.path_params["path"]) if "path" in request.path_params else ""
        wish = wanted_page(request.query_params.multi_items())
        sender = sender_of(request.scope)
        there = _within(path, [topic for topic in await self._topics.there() if sender.may_read(topic.name)])
        if path and not there and not sender.may_read(_prefix_of(path)):
            raise not_allowed(sender, "read", _prefix_of(path))
        if path and not there and spaces.described(path, await self._namespaces.records(), ()) is None:
            raise _no_such_namespace(path)
        page, more = page_of(there, wish)
        infos = await self._topics.described([there[name] for name in page])
        now = self._clock.now_ms()
        live = [_shown_stream(path, info) for info in infos if not info.expiry.expired(now)]
        return _answer(StreamList(live, more))

    async def delete(self, request: Request) -> Response:
        """Delete a namespace that is empty, or (recursive) with all that is below it."""
        path = named(request.path_params["path"])
        recursive = is_recursive(request.query_params.multi_items())
        records, every = await self._look()
        there = _within(path, every)
        inner = [each for each in records if spaces.is_below(each, path)]
        if not there and not inner and path not in records:
            raise _no_such_namespace(path)
        if not recursive and (inner or await self._has_live(list(there.values()))):
            raise _not_empty(path)
        await self._delete_streams(path, list(there.values()))
        gone: Sequence[NewRecord] = ()

        def decide(records: Mapping[str, NamespaceRecord]) -> Sequence[NewRecord]:
            nonlocal gone
            if not recursive and any(spaces.is_below(each, path) for each in records):
                raise _not_empty(path)
            gone = spaces.removed(path, records, self._clock.now_ms())
            return gone

        await self._namespaces.change(decide)
        while len(gone) == spaces.REMOVED_AT_ONCE:
            await self._namespaces.change(decide)
        return Response(status_code=204)

    async def _look(self) -> tuple[Mapping[str, NamespaceRecord], Sequence[TopicMetadata]]:
        records, there = await asyncio.gather(self._namespaces.records(), self._topics.there())
        return records, there

    async def _has_live(self, there: Sequence[TopicMetadata]) -> bool:
        """Whether one of them has not expired."""
        for start in range(0, len(there), _LOOKED_AT_ONCE):
            infos = await self._topics.described(there[start : start + _LOOKED_AT_ONCE])
            if not all(info.expiry.expired(self._clock.now_ms()) for info in infos):
                return True
        return False

    async def _delete_streams(self, path: str, there: Sequence[TopicMetadata]) -> None:
        """Delete them, and those that are made meanwhile. Problem 409 where there are ever new ones."""
        deleted: set[TopicId] = set()
        for _ in range(_ROUNDS):
            new = [topic for topic in there if topic.topic_id not in deleted]  # not every node knows yet what is gone
            if not new:
                return
            await self._topics.delete_all(new)
            deleted.update(topic.topic_id for topic in new)
            there = list(_within(path, await self._topics.there()).values())
        if any(topic.topic_id not in deleted for topic in there):
            raise ProblemError(409, "not-empty", f"streams are made in {path} while it is deleted; stop who makes them")


def _within(path: str, there: Sequence[TopicMetadata]) -> dict[str, TopicMetadata]:
    """The topics of a namespace by the names of their streams in it."""
    named_topics = ((name_of(path, topic.name), topic) for topic in there)
    return {name: topic for name, topic in named_topics if name}


def _prefix_of(path: str) -> str:
    """With what the names of all its topics begin."""
    return f"{path.replace('/', '.')}."


def _inherited(path: str, records: Mapping[str, NamespaceRecord]) -> dict[str, str] | None:
    """What the enclosing namespaces give; None where the record of one cannot be read."""
    try:
        return spaces.defaults_for(path, records)
    except KafkaError:
        return None


def _listed(record: NamespaceRecord) -> ListedNamespace:
    return ListedNamespace(record.path, _created(record), dict(record.defaults), record.fault or msgspec.UNSET)


def _shown(record: NamespaceRecord, inherited: dict[str, str] | None) -> ShownNamespace:
    fault = record.fault or msgspec.UNSET
    return ShownNamespace(record.path, _created(record), dict(record.defaults), inherited, fault)


def _created(record: NamespaceRecord) -> str | None:
    return None if record.created_at_ms < 0 else rfc_3339(record.created_at_ms)


def _shown_stream(path: str, info: StreamInfo) -> ListedStream:
    expires = None if info.expiry.at_ms is None else rfc_3339(info.expiry.at_ms)
    return ListedStream(name_of(path, info.topic) or info.topic, info.topic, info.content_type, expires)


def _answer(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, headers=_NOT_STORED, media_type="application/json")


def _no_such_namespace(path: str) -> ProblemError:
    return ProblemError(404, "no-such-namespace", f"there is no namespace {path}; PUT, or a stream below it, makes one")


def _not_empty(path: str) -> ProblemError:
    return ProblemError(
        409, "not-empty", f"streams or namespaces lie in {path}; delete them first, or with recursive=true"
    )
