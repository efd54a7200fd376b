"""Requests to consumers, POST /consumers/{group} and all below it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.group_offsets import GroupOffset
from duramen.errors import DuramenError
from duramen.gateway.access.principal import sender_of
from duramen.gateway.access.request_right import RequestRight
from duramen.gateway.confluent.rest_failures import no_such_partition, rest_problem
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v2_media_types import answer_type, consumed_type, embedded_format
from duramen.gateway.consumers.confirmed_response import ConfirmedResponse
from duramen.gateway.consumers.consumer_bodies import (
    ConsumerMade,
    ConsumerOffset,
    ConsumerOffsets,
    SubscribedTopics,
    named,
    offsets_of,
    partitions_of,
    subscription_of,
)
from duramen.gateway.consumers.consumer_instance import ConsumerAnswer, ConsumerInstance, ConsumerSubscription
from duramen.gateway.consumers.consumer_settings import consumer_settings
from duramen.gateway.consumers.held_consumers import HeldConsumers, no_such_consumer
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.tails.live_readers import disconnected
from duramen.model import TopicPartition

_LARGEST: Final = (1 << 63) - 1

ConsumerCall = Callable[[Request, ConsumerInstance], Awaitable[Any]]
"""What answers a request to a consumer: a body, or None where there is nothing to say."""


class ConsumerRequests:
    """Answers them. wait_max_s: of a read; answer_max_bytes: keys and values of one answer."""

    def __init__(
        self,
        cluster: AsyncCluster,
        held: HeldConsumers,
        bodies: RequestBodies,
        wait_max_s: float,
        answer_max_bytes: int,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._cluster = cluster
        self._admin = TopicAdmin(cluster)
        self._held = held
        self._bodies = bodies
        self._wait_max_s = wait_max_s
        self._answer_max_bytes = answer_max_bytes
        self._clock = clock
        self._metrics = metrics
        self._stopping = stopping

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {
            "createConsumer": _answered(self._create),
            "deleteConsumer": self._handler(self._delete),
            "commitConsumerOffsets": self._handler(self._commit),
            "getConsumerOffsets": self._handler(self._committed),
            "subscribeConsumer": self._handler(self._subscribe),
            "getConsumerSubscription": self._handler(self._subscription),
            "unsubscribeConsumer": self._handler(self._unsubscribe),
            "assignConsumer": self._handler(self._assign),
            "getConsumerAssignments": self._handler(self._assignments),
            "seekConsumer": self._handler(self._seek),
            "seekConsumerToBeginning": self._handler(self._seek_to_beginning),
            "seekConsumerToEnd": self._handler(self._seek_to_end),
            "readConsumerRecords": _answered(self._records),
        }

    async def end_idle(self) -> None:
        """End those that nobody used for too long. What they answered last is not committed: nobody said that it was
        worked on."""
        idle = self._held.idle(self._clock.monotonic_s())
        for group, consumer in idle:
            self._held.remove(group, consumer.name)
        await asyncio.gather(*(consumer.end() for _, consumer in idle))

    async def close(self) -> None:
        """End all of them, in the same way."""
        await asyncio.gather(*(consumer.end() for consumer in self._held.all))

    # ---- one consumer --------------------------------------------------------------------------------------------

    def _handler(self, call: ConsumerCall) -> Handler:
        async def answer(request: Request) -> Any:
            async with self._turn(request) as consumer:
                return await call(request, consumer)

        return _answered(answer)

    def _found(self, request: Request) -> ConsumerInstance:
        """Problem 403 where another one made it, 404."""
        group, name = request.path_params["group_name"], request.path_params["instance"]
        consumer = self._held.find(group, name)
        if consumer is None:
            raise no_such_consumer()
        principal = sender_of(request.scope)
        if consumer.owner != principal.name:
            raise ProblemError(403, "not-allowed", f"{principal.name} did not make this consumer.")
        return consumer

    @asynccontextmanager
    async def _turn(self, request: Request) -> AsyncIterator[ConsumerInstance]:
        """The consumer, for this request alone."""
        consumer = self._found(request)
        await consumer.turn.acquire()
        try:
            if consumer.is_ended:
                raise no_such_consumer()
            yield consumer
        finally:
            self._release(consumer)

    def _release(self, consumer: ConsumerInstance) -> None:
        consumer.last_used_s = self._clock.monotonic_s()
        consumer.turn.release()

    async def _create(self, request: Request) -> ConsumerMade:
        group = request.path_params["group_name"]
        async with self._body(request) as body:
            settings = consumer_settings(body)
        name = settings.name or f"rest-consumer-{uuid.uuid4()}"
        self._held.check_room()
        owner = sender_of(request.scope).name
        self._held.add(group, ConsumerInstance(self._cluster, group, name, owner, settings, self._clock.monotonic_s()))
        origin = f"{request.url.scheme}://{request.headers['host']}"
        return ConsumerMade(name, f"{origin}/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}")

    async def _delete(self, request: Request, consumer: ConsumerInstance) -> None:
        await consumer.commit_answered()
        self._held.remove(request.path_params["group_name"], consumer.name)
        await consumer.end()

    # ---- what it reads -------------------------------------------------------------------------------------------

    async def _subscribe(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = subscription_of(body)
        self._check_readable(request, set(wanted.topics or ()))
        await consumer.subscribe(ConsumerSubscription(tuple(wanted.topics or ()), wanted.topic_pattern))

    async def _subscription(self, _request: Request, consumer: ConsumerInstance) -> SubscribedTopics:
        wanted = consumer.subscription
        if wanted is None:
            return SubscribedTopics([])
        return SubscribedTopics(sorted(wanted.topics or {tp.topic for tp in consumer.positions.partitions}))

    async def _unsubscribe(self, _request: Request, consumer: ConsumerInstance) -> None:
        await consumer.unsubscribe()

    async def _assign(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = partitions_of(body)
        self._check_readable(request, {tp.topic for tp in wanted})
        await self._check_there(wanted)
        await consumer.assign(wanted)

    async def _assignments(self, _request: Request, consumer: ConsumerInstance) -> Any:
        return named(consumer.positions.partitions)

    async def _seek(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = offsets_of(body)
        for tp, each in wanted.items():
            if each.offset < 0:
                raise bad_request("offsets", f"the offset in {tp} is negative")
        consumer.positions.seek({tp: each.offset for tp, each in wanted.items()})

    async def _seek_to_beginning(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            await consumer.seek_to_end(partitions_of(body), beginning=True)

    async def _seek_to_end(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            await consumer.seek_to_end(partitions_of(body), beginning=False)

    def _check_readable(self, request: Request, topics: set[str]) -> None:
        for topic in sorted(topics):
            RequestRight("read", topic).check(sender_of(request.scope))

    async def _check_there(self, wanted: list[TopicPartition]) -> None:
        for topic in {tp.topic: None for tp in wanted}:
            found = (await self._admin.topic(topic)).partitions
            if any(tp.partition not in found for tp in wanted if tp.topic == topic):
                raise no_such_partition()

    # ---- offsets -------------------------------------------------------------------------------------------------

    async def _commit(self, request: Request, consumer: ConsumerInstance) -> None:
        """Commit what was read, or the records whose offsets are given: the group goes on behind each of them."""
        async with self._body(request) as body:
            if not body.strip():
                await consumer.commit_all()
                return
            wanted = offsets_of(body)
            await self._check_there(list(wanted))
            await consumer.commit(
                {tp: GroupOffset(each.offset + 1, metadata=each.metadata or "") for tp, each in wanted.items()}
            )

    async def _committed(self, request: Request, consumer: ConsumerInstance) -> ConsumerOffsets:
        """Of the partitions in the body, or of those that are read, where there is none."""
        async with self._body(request) as body:
            wanted = partitions_of(body) if body.strip() else sorted(consumer.positions.partitions)
        await self._check_there(wanted)
        found = await consumer.committed(wanted) if wanted else {}
        return ConsumerOffsets(
            [
                ConsumerOffset(tp.topic, tp.partition, found[tp].offset, found[tp].metadata)
                for tp in wanted
                if tp in found
            ]
        )

    # ---- records -------------------------------------------------------------------------------------------------

    async def _records(self, request: Request) -> Response:
        if request.method != "GET":
            raise ProblemError(405, "no-such-method", "records are read by GET", {"allow": "GET"})
        consumer = self._found(request)
        media_type = consumed_type(request.headers.get("accept"), consumer.settings.embedded)
        wait_s = min(_milliseconds(request, consumer.settings.wait_ms) / 1000, self._wait_max_s)
        max_bytes = min(_most_bytes(request), self._answer_max_bytes)
        await consumer.turn.acquire()
        try:
            if consumer.is_ended:
                raise no_such_consumer()
            self._check_readable(request, {tp.topic for tp in consumer.positions.partitions})
            found = await self._unless_left(request, consumer.read(wait_s, max_bytes, self._stopping))
        except BaseException:
            self._release(consumer)
            raise

        def ended(is_sent: bool) -> None:
            if is_sent:
                consumer.sent(found)
                self._metrics.records_read.inc(len(found.records))
            self._release(consumer)

        return ConfirmedResponse(request, msgspec.json.encode(found.records), media_type, ended)

    async def _unless_left(self, request: Request, reading: Awaitable[ConsumerAnswer]) -> ConsumerAnswer:
        """What is read, as long as the client is there."""
        left = asyncio.ensure_future(disconnected(request))
        work = asyncio.ensure_future(reading)
        try:
            await asyncio.wait((left, work), return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not work.done():
                raise ClientDisconnect
            return await work
        finally:
            left.cancel()
            work.cancel()

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body. Problem 415 where it is of another type than those of the API."""
        async with self._bodies.whole(request) as body:
            if body:
                embedded_format(request.headers.get("content-type"))
            yield body


def _answered(call: Callable[[Request], Awaitable[Any]]) -> Handler:
    """What answers requests by a call: its response, its body in the type that they accept, or 204."""

    async def answer(request: Request) -> Response:
        try:
            found = await call(request)
        except DuramenError as error:
            raise rest_problem(error) from None
        if found is None:
            return Response(status_code=204)
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), media_type=answer_type(request.headers.get("accept")))

    return answer


def _milliseconds(request: Request, default: int) -> int:
    return _number(request, "timeout", default)


def _most_bytes(request: Request) -> int:
    given = _number(request, "max_bytes", -1)
    return _LARGEST if given < 0 else given


def _number(request: Request, name: str, default: int) -> int:
    """A number of the query; -1 is for the default."""
    given = request.query_params.getlist(name)
    if not given or given == ["-1"]:
        return default
    text = given[0]
    if len(given) > 1 or not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise bad_request(name, "it is a whole number, given once")
    return int(text)
